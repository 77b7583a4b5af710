"""One replica, as far as it is known: what was configured, what probes found, whether it can take work."""

from collections.abc import Mapping
from urllib.parse import urlsplit

from .config_sections import ReplicaConfig
from .config_values import DEFAULT_PORTS
from .replica_health import Ejection, EjectionRule
from .replica_kinds import TGI_MODEL
from .replica_metrics import ReplicaLoad
from .replica_probe import ModelCard


class Replica:
    """An upstream server: what was configured and what the last probe found. Implements `policies.types.ReplicaLike`.

    Written by its pool and its watcher only, on the event loop; the pool tells of every change that scheduling sees.
    """

    def __init__(self, config: ReplicaConfig, replica_id: str, rule: EjectionRule) -> None:
        self.configure(config)
        self.replica_id = replica_id
        self.url = config.url
        parts = urlsplit(config.url)
        self.is_tls = parts.scheme == "https"
        self.host = parts.hostname or ""
        self.port = parts.port or DEFAULT_PORTS[parts.scheme]
        self.kind: str = config.kind
        """As configured; "auto" until it was found out."""
        self.models: frozenset[str] = frozenset(config.models or ())
        self.cards: Mapping[str, ModelCard] = {}
        """What it says about its models."""
        self.features: frozenset[str] = frozenset()
        """Optional abilities that were seen to work, such as `replica_probe.TOKENIZE`."""
        self.base_model: str | None = None
        """The one whose weights it loaded, where it tells: others are adapters."""
        self.described_capacity_tokens: int | None = None
        """Of its KV cache, where it is described and not in the metrics: TGI."""
        self.load: ReplicaLoad | None = None
        """The last scrape that worked, with its instant; None before."""
        self.is_healthy = False
        """Whether the last health checks were green and its models are known."""
        self.is_available = False
        self.is_hung = False
        """Whether it isn't healthy because it doesn't answer health checks at all, neither well nor ill."""
        self.last_error: str | None = None
        """Why it isn't healthy, in words; None while it is."""
        self.slice_block_tokens: int | None = None
        """Tokens in a block of its prefix cache, once that was seen to work: long prompts may go there in slices."""
        self.whole_because: str | None = None
        """Why they go there whole, in words; None where they don't, or while that isn't known."""
        self.ejection = Ejection(rule)
        self._is_on_trial = False

    def configure(self, config: ReplicaConfig) -> None:
        """Caps, credentials and the like, of what is the same server as before."""
        self._config = config
        self.authorization = config.authorization_header
        self.priority_scheduling = config.priority_scheduling

    @property
    def max_model_len(self) -> dict[str, int]:
        """Longest prompt + output by model, tokens, for the models whose bound the replica tells."""
        return {name: card.max_model_len for name, card in self.cards.items() if card.max_model_len is not None}

    @property
    def max_in_flight_tokens(self) -> int | None:
        """What was configured.

        On trial: 1, so that one request goes, since every admission policy lets a request alone in. Only where others
        can take the rest: see `ReplicaPool`.
        """
        return 1 if self._is_on_trial else self._config.max_in_flight_tokens

    @property
    def kv_capacity_tokens(self) -> int | None:
        """As its metrics tell it, else its description; None where neither does."""
        scraped = self.load.kv_capacity_tokens if self.load is not None else None
        return self.described_capacity_tokens if scraped is None else scraped

    @property
    def max_in_flight_requests(self) -> int | None:
        return self._config.max_in_flight_requests

    @property
    def max_prefill_tokens(self) -> int | None:
        return self._config.max_prefill_tokens

    def wire_name(self, model: str) -> str:
        """What this replica calls a model of its list."""
        return TGI_MODEL if self.kind == "tgi" and model == self.base_model else model

    def put_on_trial(self, is_on_trial: bool) -> None:
        self._is_on_trial = is_on_trial

    def as_seen(self) -> tuple[object, ...]:
        """What scheduling and the list of models depend on: equal before and after means no change."""
        return (
            self.models,
            self.features,
            self.is_available,
            self.max_in_flight_tokens,
            self.kv_capacity_tokens,
            self.max_in_flight_requests,
            self.max_prefill_tokens,
            self.slice_block_tokens,
            self.kind,
        )
