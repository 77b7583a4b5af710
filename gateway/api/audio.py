"""OpenAI's transcriptions and translations: forms with a sound file, whose model and size are all that is read."""

from ..errors import BadRequest, Headers
from .fields import RequestFields
from .multipart import read_form

# An mp3 of 128 kbit/s has 16,000 bytes a second, of which Whisper's encoder makes 50 positions.
AUDIO_BYTES_PER_TOKEN = 320
_TRUE = (b"true", b"1", b"True")


def read_audio(body: bytes, headers: Headers, _: int) -> RequestFields:
    """POST /v1/audio/transcriptions, /v1/audio/translations."""
    form = read_form(body, headers)

    def value(name: str) -> bytes | None:
        places = form.fields.get(name)
        return None if places is None else body[slice(*places[-1])]

    model = value("model")
    try:
        name = model.decode() if model else None
    except UnicodeDecodeError:
        raise BadRequest("`model` must be text in UTF-8.", param="model") from None
    return RequestFields(
        num_body_bytes=len(body),
        model=name,
        stream=value("stream") in _TRUE,
        estimated_tokens=max(1, form.num_file_bytes // AUDIO_BYTES_PER_TOKEN),
    )
