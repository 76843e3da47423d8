"use strict";
// The page: turns and what can be done with them, the list of conversations, settings.

let conversation = newConversation(), running = null;

function showTurn(turn) {
  const article = make("article", $("talk"), turn.role);
  article.setAttribute("aria-label", turn.role === "user" ? "You" : turn.model || "Answer");
  return turn.role === "user" ? showQuestion(article, turn) : showAnswer(article, turn);
}

function showQuestion(article, turn) {
  drawPictures(article, turn);
  make("p", article, "question", turn.text);
  const actions = make("div", article, "actions");
  button(actions, "Copy", (from) => copy(turn.text, from));
  button(actions, "Edit", () => edit(article, turn)).classList.add("changes");
}

// Returns what shows the turn as it has become.
function showAnswer(article, turn) {
  const thought = make("details", article, "thought");
  const summary = make("summary", thought), thoughts = make("p", thought);
  const view = new MarkdownView(make("div", article, "answer"));
  const error = make("p", article, "error");
  const figures = make("div", article, "figures small");
  const svg = drawn("svg", figures, { width: PLOT_WIDTH + 130, height: PLOT_HEIGHT, role: "img" });
  const words = make("span", figures);
  const actions = make("div", article, "actions");
  button(actions, "Copy", (from) => copy(turn.text, from));
  button(actions, "Regenerate", () => regenerate(turn)).classList.add("changes", "again");
  const draw = (isWhole) => {
    thought.hidden = !turn.thought;
    summary.textContent = isWhole || turn.text ? `Thought for ${((turn.thoughtMs ?? 0) / 1000).toFixed(1)} s` : "Thinking";
    thoughts.textContent = turn.thought;
    view.show(turn.text, turn.runs, isWhole);
    error.textContent = turn.error;
    error.hidden = !turn.error;
    words.textContent = (!isWhole && turn.waiting) || figuresOf(turn);
    drawPlot(svg, turn.samples);
    svg.toggleAttribute("hidden", !svg.firstChild);
    actions.hidden = !isWhole;
  };
  draw(turn !== running?.turn);
  return draw;
}

function edit(article, turn) {
  const field = document.createElement("textarea");
  field.value = turn.text;
  field.setAttribute("aria-label", "Edit the message");
  const actions = document.createElement("div");
  actions.className = "actions";
  const send = () => {
    if (!field.value.trim() || running) return;
    cut(turn);
    submit(field.value, turn.pictures);
  };
  button(actions, "Send", send);
  button(actions, "Cancel", () => { show(); toText(); });
  article.replaceChildren(field, actions);
  field.onkeydown = (event) => {
    if (isSend(event)) send();
    else if (event.key === "Escape") show();
  };
  field.focus();
}

// Leaves out a turn and all behind it.
function cut(turn) {
  conversation.turns.length = conversation.turns.indexOf(turn);
  show();
}

function regenerate(turn) {
  if (running) return;
  cut(turn);
  answer();
}

function submit(text, pictures = []) {
  const turn = { role: "user", text, ...(pictures.length && { pictures, numPictures: pictures.length }) };
  if (!conversation.turns.length) $("talk").replaceChildren();
  conversation.turns.push(turn);
  showTurn(turn);
  answer();
  toText();
}

async function answer() {
  const own = conversation, turns = [...own.turns], turn = newAnswer($("model").value), start = performance.now();
  own.turns.push(turn);
  const run = running = { turn, stop: new AbortController() };
  const draw = showTurn(turn), later = paced(() => running === run && follow(() => draw(false)));
  change("Answering");
  keep(own);
  follow(() => {}, true);
  try {
    if (!turn.model) await findModels();
    own.model = turn.model = $("model").value;
    const [path, body] = await requestOf(turn.model, turns);
    for await (const event of eventsOf(await ask(path, body, run.stop.signal))) {
      if (event.error) throw new Error(event.error.message);
      take(turn, event, start);
      later();
    }
  } catch (error) {
    if (error.name === "AbortError") turn.end = "stopped";
    else turn.error = error.message;
  }
  if (!own.isDropped) keep(own);
  if (running !== run) return; // another conversation is shown
  running = null;
  follow(() => draw(true));
  change(turn.error || `The answer has ended: ${figuresOf(turn)}`);
  findModels().catch(() => {}); // states of models have changed
}

// Does some work soon, once for many calls, and leaves most of the time to others.
function paced(work) {
  let taken = 0, isDue = false;
  return () => {
    if (isDue) return;
    isDue = true;
    setTimeout(() => {
      isDue = false;
      const start = performance.now();
      work();
      taken = performance.now() - start;
    }, Math.max(40, 4 * taken));
  };
}

// Stays at the end of the conversation where the reader is there.
function follow(work, always = false) {
  const talk = $("talk");
  const isAtEnd = always || talk.scrollHeight - talk.scrollTop - talk.clientHeight < 60;
  work();
  if (isAtEnd) talk.scrollTop = talk.scrollHeight;
}

function change(words = "") {
  $("send").hidden = running !== null;
  $("stop").hidden = running === null;
  for (const each of document.querySelectorAll(".changes")) each.disabled = running !== null;
  $("status").textContent = words;
}

function show() {
  $("talk").replaceChildren();
  for (const turn of conversation.turns) showTurn(turn);
  if (!conversation.turns.length) make("p", $("talk"), "empty", "What you write goes to this server alone, and is kept in this browser.");
  follow(() => {}, true);
  change();
}

function keep(own) {
  const trouble = keepConversation(own);
  $("store").textContent = trouble || "Kept in this browser alone.";
  $("store").classList.toggle("error", trouble !== "");
  if (own === conversation && !trouble) history.replaceState(null, "", `#${own.id}`);
  list();
}

function list() {
  const kept = keptConversations();
  $("list").replaceChildren();
  $("delete-all").disabled = !kept.length;
  for (const each of kept) {
    const item = make("li", $("list")), link = make("a", item, "", each.title);
    link.href = `#${each.id}`;
    link.title = each.title;
    if (each.id === conversation.id) link.setAttribute("aria-current", "page");
    button(item, "×", () => remove([each])).setAttribute("aria-label", `Delete ${each.title}`);
  }
}

function remove(conversations) {
  const one = conversations.length === 1 ? `"${conversations[0].title}"` : `all ${conversations.length} conversations`;
  if (!confirm(`Delete ${one}?`)) return;
  if (conversations.some(({ id }) => id === conversation.id)) {
    conversation.isDropped = true;
    open(newConversation());
  }
  for (const { id } of conversations) dropConversation(id);
  list();
}

// An answer that runs is stopped: it would be shown nowhere.
function open(chosen) {
  if (running) {
    running.stop.abort();
    running = null;
  }
  conversation = chosen;
  if ([...$("model").options].some((each) => each.value === chosen.model)) pick(chosen.model).catch(() => {});
  const place = chosen.turns.length ? `#${chosen.id}` : location.pathname;
  history.replaceState(null, "", place);
  toggleSide(false);
  show();
  list();
  toText();
}

// Where a keyboard on the screen would cover the answer, the message gets no focus.
function toText() {
  if (!matchMedia("(pointer: coarse)").matches) $("text").focus();
}

function openFromAddress() {
  const chosen = keptConversations().find(({ id }) => `#${id}` === location.hash);
  if (chosen?.id !== conversation.id) open(chosen ?? newConversation());
}

async function findModels() {
  const { data } = await (await ask("v1/models")).json();
  const names = data.map(({ id }) => id);
  const chosen = [$("model").value, conversation.model, remembered("reader-edge-model")].find((name) => names.includes(name));
  $("model").replaceChildren(...data.map(({ id, status }) => {
    const isLoaded = (status?.value ?? "loaded") === "loaded";
    return new Option(isLoaded ? id : `${id} (${status.value})`, id);
  }));
  await pick(chosen ?? names[0]);
}

async function pick(model) {
  $("model").value = model;
  const { isChat, sees, temperature } = await kindOf(model);
  $("attach").hidden = !sees;
  $("text").placeholder = isChat ? "Ask something" : "A text to continue (this is not a chat model)";
  $("temperature").placeholder = temperature ?? "0";
}

function toggleSide(isOpen) {
  $("side").classList.toggle("open", isOpen);
  $("menu").setAttribute("aria-expanded", isOpen);
}

function isSend(event) {
  const isLine = event.shiftKey || event.isComposing || matchMedia("(pointer: coarse)").matches;
  if (event.key !== "Enter" || isLine) return false;
  event.preventDefault();
  return true;
}

function send() {
  const text = $("text").value;
  if (!text.trim() || running) return;
  $("text").value = "";
  submit(text, takePictures());
}

// A control whose value is kept, and what it changes.
function setting(id, field, apply) {
  const control = $(id), name = `reader-edge-${id}`;
  control[field] = typeof control[field] === "boolean" ? remembered(name) === "true" : remembered(name);
  control.addEventListener("change", () => { remember(name, control[field]); apply(control[field]); });
  apply(control[field]);
}

setting("theme", "value", (theme) => { document.documentElement.dataset.theme = theme; });
setting("tints", "checked", (isOn) => document.body.classList.toggle("tinted", isOn));
$("send").onclick = send;
$("stop").onclick = () => { running?.stop.abort(); toText(); };
$("new").onclick = () => open(newConversation());
$("delete-all").onclick = () => remove(keptConversations());
$("menu").onclick = () => toggleSide(!$("side").classList.contains("open"));
$("talk").onclick = () => { toggleSide(false); $("settings").open = false; };
$("attach").onclick = () => $("files").click();
$("files").onchange = () => { addPictures($("files").files).catch(() => {}); $("files").value = ""; };
$("text").onpaste = (event) => {
  if (!event.clipboardData.files.length) return;
  event.preventDefault();
  addPictures(event.clipboardData.files).catch(() => {});
};
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  if (event.dataTransfer.files.length) addPictures(event.dataTransfer.files).catch(() => {});
});
$("text").onkeydown = (event) => { if (isSend(event)) send(); };
$("key").onchange = () => findModels().catch(() => {});
$("model").onchange = () => {
  remember("reader-edge-model", $("model").value);
  pick($("model").value).catch(() => {});
};
addEventListener("hashchange", openFromAddress);
addEventListener("storage", list);
addEventListener("pagehide", () => { if (running) keep(conversation); });
addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  running?.stop.abort();
  toggleSide(false);
  $("settings").open = false;
});
openFromAddress();
findModels().catch(() => {});
