// Calls of the server: one chat request as a stream of events, and what the server says of itself.

const KEY = "slipstream-api-key";

function headers() {
  const key = sessionStorage.getItem(KEY);
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function checked(response) {
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  const message = body?.error?.message ?? `the server answered ${response.status}`;
  if (response.status === 401) {
    const key = window.prompt("API key of this server");
    if (key) sessionStorage.setItem(KEY, key);
  }
  throw new Error(message);
}

export async function get(path) {
  return (await checked(await fetch(path, { headers: headers() }))).json();
}

// Yields {choice, usage} for every event of an answer.
export async function* ask(body, signal) {
  const whole = { ...body, stream: true, stream_options: { include_usage: true } };
  const response = await checked(
    await fetch("/v1/chat/completions", { method: "POST", headers: headers(), body: JSON.stringify(whole), signal }),
  );
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n\n");
    rest = lines.pop();
    for (const line of lines) {
      const data = line.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield { choice: event.choices[0], usage: event.usage };
    }
  }
}
