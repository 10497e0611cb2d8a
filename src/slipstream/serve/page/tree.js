// The draft of a cycle as a tree: what was drafted, what was accepted, and the token that the model added.

const SVG = "http://www.w3.org/2000/svg";
const [COLUMN, ROW, HIGH] = [92, 26, 20];
const [place, caption] = ["draft-tree", "tree-caption"].map((id) => document.getElementById(id));
const MOST = 240; // pixels, beyond which the drawing scrolls
let [cycles, tallest] = [[], 0];

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const visible = (text) => {
  const shown = text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣");
  return shown.length > 10 ? `${shown.slice(0, 9)}…` : shown;
};

// Nodes of the drawing: those of the draft, and the model's own token at the end of the accepted path.
function nodes({ draft, last, origin }) {
  const path = new Set(draft.path);
  const all = draft.tokens.map((text, i) => ({ text, parent: draft.parents[i], kind: path.has(i) ? "accepted" : "rejected" }));
  const end = draft.path.length ? draft.path[draft.path.length - 1] : -1;
  if (last !== undefined) all.push({ text: last, parent: end, kind: origin });
  return all;
}

// Columns are positions in the draft; each leaf has a row of its own, and a parent is level with its first child.
function lay(all) {
  const children = (parent) => all.filter((node) => node.parent === parent);
  let row = 0;
  const visit = (node, column) => {
    node.column = column;
    const below = children(all.indexOf(node));
    node.row = below.length ? Math.min(...below.map((child) => visit(child, column + 1))) : row++;
    return node.row;
  };
  for (const root of children(-1)) visit(root, 1);
  return row;
}

function draw(cycle, number) {
  const all = nodes(cycle);
  const rows = lay(all);
  const width = COLUMN * (1 + Math.max(...all.map((node) => node.column)));
  place.setAttribute("viewBox", `0 0 ${width} ${rows * ROW + 4}`);
  place.setAttribute("width", width);
  place.setAttribute("height", rows * ROW + 4);
  tallest = Math.max(tallest, rows * ROW + 4); // the frame never shrinks, so that nothing below it jumps
  place.parentElement.style.height = `${Math.min(tallest, MOST) + 14}px`;
  const middle = (node) => node.row * ROW + HIGH / 2 + 2;
  const parts = [element("rect", { x: 2, y: 2, width: COLUMN - 24, height: HIGH, rx: 5, class: "root" }), element("text", { x: 8, y: 16 }, "so far")];
  for (const node of all) {
    const parent = node.parent < 0 ? { column: 0, row: 0 } : all[node.parent];
    const [from, to] = [parent.column * COLUMN + COLUMN - 22, node.column * COLUMN + 2];
    const bend = (from + to) / 2;
    parts.unshift(element("path", { class: `edge ${node.kind}`, d: `M${from} ${middle(parent)}C${bend} ${middle(parent)} ${bend} ${middle(node)} ${to} ${middle(node)}` }));
    parts.push(element("rect", { x: to, y: node.row * ROW + 2, width: COLUMN - 24, height: HIGH, rx: 5, class: `node ${node.kind}` }));
    parts.push(element("text", { x: to + 6, y: node.row * ROW + 16, class: node.kind }, visible(node.text)));
  }
  place.replaceChildren(...parts);
  const kept = cycle.draft.path.length;
  caption.textContent = `Draft of cycle ${number + 1}: ${cycle.draft.tokens.length} drafted, ${kept} accepted`;
  place.setAttribute("aria-label", `${caption.textContent}; accepted: ${cycle.draft.path.map((i) => cycle.draft.tokens[i]).join("") || "none"}`);
  document.getElementById("tree-view").hidden = false;
}

export function newAnswer() {
  [cycles, tallest] = [[], 0];
  document.getElementById("tree-view").hidden = true;
}

// Keep a cycle and draw it; its number, or nothing where there was no draft.
export function addCycle(choice) {
  const own = choice.slipstream;
  if (!own?.draft) return undefined;
  const kept = own.draft.path.length;
  cycles.push({ draft: own.draft, last: own.pieces[kept], origin: own.origins[kept] ?? "plain" });
  draw(cycles[cycles.length - 1], cycles.length - 1);
  return cycles.length - 1;
}

export function showCycle(number) {
  if (cycles[number]) draw(cycles[number], number);
}

// Where the i-th token of a cycle stood among the candidates for its place.
export function rank(draft, i) {
  if (!draft) return "";
  const parent = i ? draft.path[i - 1] : -1;
  const siblings = draft.parents.flatMap((own, node) => (own === parent ? [node] : []));
  if (i < draft.path.length) return `candidate ${siblings.indexOf(draft.path[i]) + 1} of ${siblings.length} in the draft`;
  return siblings.length ? `not among ${siblings.length} drafted` : "after the draft";
}
