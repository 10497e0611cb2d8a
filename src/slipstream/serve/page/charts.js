// Figures of an answer, and the drawing of small charts.

const SVG = "http://www.w3.org/2000/svg";

export class Figures {
  constructor() {
    this.began = performance.now();
    this.first = null;
    this.last = null;
    this.tokens = 0;
    this.cycles = [];
    this.usage = null;
  }

  add(count) {
    if (!count) return;
    this.last = performance.now();
    this.first ??= this.last;
    this.tokens += count;
    this.cycles.push(count);
  }

  get speed() {
    const seconds = (this.last - this.first) / 1000; // from the first event to the last one
    return seconds > 0 ? (this.tokens - this.cycles[0]) / seconds : 0;
  }

  get seconds() {
    return ((this.last ?? this.began) - this.began) / 1000;
  }

  get tau() {
    return this.cycles.length ? this.tokens / this.cycles.length : 0;
  }
}

export function list(place, pairs) {
  place.replaceChildren(
    ...pairs.flatMap(([name, value]) => {
      const [term, number] = [document.createElement("dt"), document.createElement("dd")];
      [term.textContent, number.textContent] = [name, value];
      return [term, number];
    }),
  );
}

export function show(figures) {
  const spent = figures.usage?.speculation;
  list(document.getElementById("figures"), [
    ["tokens", String(figures.tokens)],
    ["tokens per second", figures.speed.toFixed(1)],
    ["first token", figures.first ? `${((figures.first - figures.began) / 1000).toFixed(2)} s` : "–"],
    ["tau", figures.tau.toFixed(2)],
    ...(spent ? [["drafted", String(spent.drafted)], ["accepted", String(spent.accepted)], ["rule", spent.rule], ["lossless", String(spent.lossless)]] : []),
  ]);
  bars(document.getElementById("cycles-chart"), figures.cycles.slice(-80), Math.max(4, ...figures.cycles));
  document.getElementById("cycles-now").textContent = figures.cycles.length ? `most ${Math.max(...figures.cycles)}` : "";
  bars(document.getElementById("acceptance-chart"), spent?.acceptance ?? [], 1, (value) => `${Math.round(100 * value)}`);
}

const [WIDTH, HEIGHT] = [300, 70];

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function draw(svg, parts) {
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("preserveAspectRatio", "none");
  const base = element("line", { x1: 0, y1: HEIGHT, x2: WIDTH, y2: HEIGHT });
  svg.replaceChildren(...(parts.length ? [...parts, base] : []));
}

function bars(svg, values, top, label) {
  const step = WIDTH / Math.max(8, values.length);
  const parts = values.flatMap((value, i) => {
    const tall = (value / top) * (HEIGHT - 14);
    const bar = element("rect", { x: i * step + 1, y: HEIGHT - tall, width: Math.max(1, step - 2), height: tall });
    return label ? [bar, element("text", { x: i * step + 3, y: HEIGHT - tall - 3 }, label(value))] : [bar];
  });
  draw(svg, parts);
}

// Values over time, the newest at the right edge; `under` are shares of them in the main colour.
export function area(svg, values, top, places, under) {
  const step = WIDTH / (places - 1);
  const shape = (own) => {
    const points = own.map((value, i) => `${WIDTH - (own.length - 1 - i) * step},${HEIGHT - (value / top) * (HEIGHT - 6)}`);
    return [`${WIDTH - (own.length - 1) * step},${HEIGHT}`, ...points, `${WIDTH},${HEIGHT}`].join(" ");
  };
  const parts = [element("polygon", { points: shape(values), class: under ? "waiting" : "area" })];
  if (under) parts.push(element("polygon", { points: shape(under), class: "area" }));
  draw(svg, parts);
  svg.setAttribute("aria-label", `${svg.dataset.name}: now ${values.at(-1).toFixed(1)}, the most was ${Math.max(...values).toFixed(1)}`);
}
