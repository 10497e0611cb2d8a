// The dials: what a request asks for.

const field = (id) => document.getElementById(id);

function showDials() {
  for (const mode of ["depth", "tree"]) field(`${mode}-dial`).hidden = field("mode").value !== mode;
}

export function watchDials() {
  field("mode").addEventListener("change", showDials);
  showDials();
  for (const id of ["depth", "temperature"]) {
    field(id).addEventListener("input", () => (field(`${id}-value`).textContent = field(id).value));
  }
}

export function offer(id, names) {
  const known = new Set([...field(id).options].map((option) => option.value));
  for (const name of names) if (!known.has(name)) field(id).append(new Option(name, name));
}

// Engines that cannot tell probabilities while they draft are not asked for them.
export function allowDetails(offered) {
  field("details").disabled = !offered;
  if (!offered) field("details").checked = false;
}

function speculation() {
  const mode = field("mode").value;
  if (mode === "off") return { off: true };
  const own = {};
  if (mode === "depth") own.depth = Number(field("depth").value);
  if (mode === "tree") own.shape = field("tree").value;
  if (field("drafter").value) own.drafter = field("drafter").value;
  if (field("rule").value) own.rule = field("rule").value;
  return own;
}

export function request(messages, changes = {}) {
  const body = {
    messages,
    temperature: Number(field("temperature").value),
    max_tokens: Number(field("max-tokens").value),
    speculation: speculation(),
  };
  if (field("seed").value !== "") body.seed = Number(field("seed").value);
  if (field("details").checked) Object.assign(body, { logprobs: true, top_logprobs: 4 });
  return { ...body, ...changes };
}
