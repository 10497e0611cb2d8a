// OpenAI's JavaScript client against a live server: node client.mjs ADDRESS; NODE_MODULES is the folder with the client.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const require = createRequire(`${process.env.NODE_MODULES}/`);
const { OpenAI } = require("openai");
const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });

const models = await client.models.list();
const model = models.data[0].id;
const ask = { model, messages: [{ role: "user", content: "Name three colours." }], seed: 7, max_tokens: 24 };

const whole = await client.chat.completions.create({ ...ask, logprobs: true, top_logprobs: 2 });
assert.equal(whole.choices[0].logprobs.content.length, whole.usage.completion_tokens);

let text = "";
let usage = null;
const events = await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } });
for await (const event of events) {
  text += event.choices[0]?.delta.content ?? "";
  usage = event.usage ?? usage;
}
assert.equal(text, whole.choices[0].message.content);
assert.equal(usage.total_tokens, whole.usage.total_tokens);

const helper = client.chat.completions.stream(ask);
assert.equal((await helper.finalChatCompletion()).choices[0].message.content, text);

const scored = await client.completions.create({ model, prompt: "One two", max_tokens: 0, echo: true, logprobs: 1 });
assert.equal(scored.choices[0].text, "One two");
assert.equal(scored.choices[0].logprobs.token_logprobs[0], null);

const schema = { type: "object", properties: { colour: { enum: ["red", "blue"] } }, required: ["colour"] };
const format = { type: "json_schema", json_schema: { name: "colour", schema } };
const json = await client.chat.completions.create({ ...ask, response_format: format, max_tokens: 60 });
assert.ok(["red", "blue"].includes(JSON.parse(json.choices[0].message.content).colour));

const response = await client.responses.create({ model, input: "Name three colours.", max_output_tokens: 12, seed: 7 });
const stream = client.responses.stream({ model, input: "Name three colours.", max_output_tokens: 12, seed: 7 });
assert.equal((await stream.finalResponse()).output_text, response.output_text);
assert.equal(response.status, "incomplete");

await assert.rejects(client.chat.completions.create({ ...ask, temprature: 1 }), (error) => {
  assert.ok(error instanceof OpenAI.BadRequestError);
  return /there is no parameter 'temprature'/.test(error.message);
});

const stopped = await client.chat.completions.create({ ...ask, max_tokens: 400, stream: true });
for await (const _ of stopped) break;
console.log("done");
