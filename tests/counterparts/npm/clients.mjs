// What the npm package `openai` makes of a gateway: node clients.mjs URL MODEL SCENARIO… prints a JSON object, by scenario.
import OpenAI, { toFile } from "openai";

const [url, model, ...names] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const asking = (content, more = {}) => ({ model, messages: [{ role: "user", content }], temperature: 0, ...more });
const stream = (content, more = {}) => client.chat.completions.create(asking(content, { stream: true, ...more }));

async function failure(call) {
  try {
    await call();
  } catch (error) {
    return { name: error.constructor.name, status: error.status, code: error.code, param: error.param };
  }
  return null;
}

const scenarios = {
  async whole() {
    const { data, response } = await client.chat.completions
      .create(asking("What is the capital of France?", { max_tokens: 8 }))
      .withResponse();
    return { text: data.choices[0].message.content, usage: data.usage, replica: response.headers.get("x-tailgate-replica") };
  },
  async stream() {
    let text = "";
    let usage = null;
    const options = { max_tokens: 8, stream_options: { include_usage: true } };
    for await (const chunk of await stream("What is the capital of France?", options)) {
      text += chunk.choices[0]?.delta?.content ?? "";
      usage = chunk.usage ?? usage;
    }
    return { text, usage };
  },
  async models() {
    const ids = [];
    for await (const each of client.models.list()) ids.push(each.id);
    return ids;
  },
  async leave() {
    for await (const chunk of await stream("hang")) return chunk.choices[0].delta.content;
  },
  async abort() {
    const chunks = await stream("hang");
    const first = await chunks[Symbol.asyncIterator]().next();
    chunks.controller.abort();
    return first.value.choices[0].delta.content;
  },
  timeout: () => failure(() => client.chat.completions.create(asking("silence"), { timeout: 200 })),
  refused: () => failure(() => client.chat.completions.create(asking("refuse"))),
  limited: () => failure(() => client.chat.completions.create(asking("limit"))),
  unknown: () => failure(() => client.chat.completions.create({ ...asking("x"), model: "gpt-4o" })),
  async broken() {
    let text = "";
    const error = await failure(async () => {
      for await (const chunk of await stream("break")) text += chunk.choices[0]?.delta?.content ?? "";
    });
    return { text, error };
  },
  async tools() {
    const tool = { type: "function", function: { name: "weather", parameters: { type: "object", properties: {} } } };
    const answer = await client.chat.completions.create(asking("tool", { tools: [tool] }));
    return answer.choices[0].message.tool_calls;
  },
  async timed() {
    const reasons = [];
    const options = { headers: { "x-tailgate-timing": "stream" } };
    const chunks = await client.chat.completions.create(asking("words", { stream: true }), options);
    for await (const chunk of chunks) reasons.push(chunk.choices[0].finish_reason);
    return reasons;
  },
  async sound() {
    const file = await toFile(Buffer.alloc(1 << 20, 7), "a.wav", { type: "audio/wav" });
    return (await client.audio.transcriptions.create({ model: "whisper-1", file })).text;
  },
  async retry() {
    const answer = client.chat.completions.create(asking("later"), { maxRetries: 1 });
    return (await answer.withResponse()).response.status;
  },
};

const told = {};
for (const name of names) told[name] = await scenarios[name]();
console.log(JSON.stringify(told));
