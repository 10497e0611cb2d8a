// The chat: a conversation, one answer at a time.

import { ask } from "./api.js";
import { Figures, show } from "./charts.js";
import { request } from "./settings.js";
import { append } from "./tokens.js";
import { addCycle, newAnswer } from "./tree.js";

const [form, prompt, list] = ["chat-form", "chat-prompt", "messages"].map((id) => document.getElementById(id));
const examples = document.getElementById("examples");
const stop = document.getElementById("chat-stop");
let history = [];
let running = null;

function item(kind, text) {
  const entry = document.createElement("li");
  entry.className = kind;
  entry.textContent = text;
  list.append(entry);
  entry.scrollIntoView({ block: "nearest" });
  return entry;
}

async function send(text) {
  history.push({ role: "user", content: text });
  item("user", text);
  const entry = item("assistant", "");
  entry.tabIndex = 0;
  entry.setAttribute("aria-label", "Answer; the arrow keys walk through its tokens");
  entry.setAttribute("role", "group");
  examples.hidden = true;
  const figures = new Figures();
  for (const old of list.querySelectorAll("[data-cycle]")) delete old.dataset.cycle; // their trees are gone
  newAnswer();
  running = new AbortController();
  stop.disabled = false;
  let answer = "";
  try {
    for await (const { choice, usage } of ask(request(history), running.signal)) {
      if (choice) {
        answer += choice.delta?.content ?? "";
        figures.add(append(entry, choice, addCycle(choice)));
      }
      figures.usage = usage ?? figures.usage;
      show(figures);
    }
  } catch (error) {
    if (error.name !== "AbortError") item("error", error.message);
  } finally {
    if (answer) history.push({ role: "assistant", content: answer });
    else history.pop();
    running = null;
    stop.disabled = true;
    prompt.focus();
  }
}

export function startChat() {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = prompt.value.trim() || prompt.placeholder;
    if (running) return;
    prompt.value = "";
    send(text);
  });
  examples.addEventListener("click", (event) => {
    if (event.target.type === "button" && !running) send(event.target.textContent);
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
  stop.addEventListener("click", () => running?.abort());
  document.getElementById("chat-clear").addEventListener("click", () => {
    running?.abort();
    history = [];
    list.replaceChildren();
    examples.hidden = false;
    newAnswer();
    prompt.focus();
  });
}
