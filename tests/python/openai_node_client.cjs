// The OpenAI JavaScript SDK against a server of ours: node openai_node_client.cjs URL MODEL. Run by openai_node_test.py.
const assert = require('node:assert/strict');
const module_ = require('openai');
const OpenAI = module_.OpenAI ?? module_.default;
const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'any', maxRetries: 0 });
const messages = [{ role: 'user', content: 'What is the capital of France?' }];

async function metric(name) {
  const text = await (await fetch(`${url}/metrics`)).text();
  return Number(text.split('\n').find((line) => line.startsWith(`attest:${name}{`)).split(' ').pop());
}

const tests = {
  async 'models are listed and found by a name with a slash'() {
    const ids = [];
    for await (const entry of client.models.list()) ids.push(entry.id);
    assert.deepEqual(ids, [model]);
    assert.equal((await client.models.retrieve(model)).id, model);
  },
  async 'a chat answers, and its stream says the same'() {
    const fields = { model, messages, temperature: 0, max_completion_tokens: 24, logprobs: true, top_logprobs: 2 };
    const whole = await client.chat.completions.create(fields);
    assert.match(whole.choices[0].message.content, /Paris/);
    assert.equal(whole.choices[0].logprobs.content[0].top_logprobs.length, 2);
    let text = '', usage;
    const stream = await client.chat.completions.create({ ...fields, stream: true, stream_options: { include_usage: true } });
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta?.content ?? '';
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(usage.total_tokens, whole.usage.total_tokens);
    const helper = client.chat.completions.stream(fields);  // the SDK puts the answer together
    assert.equal(await helper.finalContent(), whole.choices[0].message.content);
  },
  async 'fifty streams at once all end'() {
    const one = async (i) => {
      let chunks = 0, reason;
      const stream = await client.completions.create({ model, prompt: `Number ${i}:`, max_tokens: 8, temperature: 0, stream: true });
      for await (const chunk of stream) {
        chunks += 1;
        reason = chunk.choices[0].finish_reason ?? reason;
      }
      return [chunks > 0, typeof reason];
    };
    const ends = await Promise.all(Array.from({ length: 50 }, (_, i) => one(i)));
    assert.deepEqual(ends, ends.map(() => [true, 'string']));
  },
  async 'errors are its classes'() {
    await assert.rejects(client.completions.create({ model: 'nobody', prompt: 'x' }),
      (error) => error instanceof OpenAI.NotFoundError && error.param === 'model' && Boolean(error.requestID));
    await assert.rejects(client.completions.create({ model, prompt: 'x', temperature: -1 }),
      (error) => error instanceof OpenAI.BadRequestError && error.param === 'temperature');
  },
  async 'an abort ends the sequence'() {
    const stream = await client.completions.create({ model, prompt: 'Once', max_tokens: 900, stream: true, ignore_eos: true });
    for await (const chunk of stream) if (chunk.choices[0].text) break;  // leaving the loop aborts
    for (let i = 0; i < 200 && (await metric('num_requests_running')) > 0; ++i) await new Promise((done) => setTimeout(done, 25));
    assert.equal(await metric('num_requests_running'), 0);
    assert.equal(await metric('kv_cache_usage_perc'), 0);
  },
};

(async () => {
  for (const [name, test] of Object.entries(tests)) {
    await test();
    console.log(`${name}: ok`);
  }
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
