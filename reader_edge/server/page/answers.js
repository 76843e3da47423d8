"use strict";
// What the server is asked, and answers as they come.

const $ = (id) => document.getElementById(id);

async function ask(path, body, signal) {
  const headers = {};
  if ($("key").value) headers.Authorization = `Bearer ${$("key").value}`;
  if (body) headers["Content-Type"] = "application/json";
  const how = { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal };
  let response;
  try {
    response = await fetch(path, how);
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error("The server cannot be reached.");
  }
  if (response.status === 401) $("keyed").hidden = false;
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({ error: `The server answered ${response.status}.` }));
  throw new Error(error.message ?? error);
}

// Events, and comments as { progress }.
async function* eventsOf(response) {
  let rest = "";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let part; !(part = await reader.read()).done;) {
    const lines = (rest + part.value).split("\n\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: {")) yield JSON.parse(line.slice(6));
      else if (line.startsWith(": {")) yield { progress: JSON.parse(line.slice(2)) };
    }
  }
}

const kinds = new Map(); // of models: whether they chat and see, and the temperature that is recommended

async function kindOf(model) {
  if (!kinds.has(model)) {
    const shown = await (await ask("api/show", { model })).json();
    const temperature = /^temperature\s+(\S+)/m.exec(shown.parameters)?.[1];
    kinds.set(model, { isChat: shown.template !== "", sees: shown.capabilities.includes("vision"), temperature });
  }
  return kinds.get(model);
}

async function requestOf(model, turns) {
  const { isChat, temperature } = await kindOf(model);
  const options = { include_usage: true, include_sources: true, continuous_usage_stats: true };
  const body = { model, stream: true, stream_options: options, max_tokens: $("tokens").value ? Number($("tokens").value) : -1 };
  if ($("temperature").value) body.temperature = Number($("temperature").value);
  else if (temperature === undefined) body.temperature = 0; // nothing is recommended
  if (isChat) body.messages = turns.map((turn) => ({ role: turn.role, content: contentOf(turn) }));
  else body.prompt = turns.at(-1).text;
  return [isChat ? "v1/chat/completions" : "v1/completions", body];
}

function contentOf({ text, pictures }) {
  if (!pictures) return text;
  return [...pictures.map((url) => ({ type: "image_url", image_url: { url } })), { type: "text", text }];
}

function waitingFor({ model_loading: model, prompt_progress: prompt }) {
  if (model) return `loading ${model}`;
  return prompt?.total ? `reading the prompt: ${Math.floor(prompt.processed / prompt.total * 100)}%` : "";
}

// Adds what an event brings to a turn. start: of the request.
function take(turn, event, start) {
  const ms = Math.round(performance.now() - start);
  const choice = event.choices?.[0];
  if (event.progress) turn.waiting = waitingFor(event.progress);
  if (choice) {
    turn.waiting = "";
    turn.thought += choice.delta?.reasoning_content ?? "";
    if (turn.thought && !turn.text) turn.thoughtMs = ms;
    for (const [text, source] of choice.draft_sources) addText(turn, text.replaceAll("\r", ""), source);
    if (choice.finish_reason) turn.end = choice.finish_reason;
  }
  if (event.usage?.completion_tokens) {
    const { completion_tokens: tokens, completion_tokens_details: details } = event.usage;
    const sample = [ms, tokens, details.accepted_prediction_tokens, details.rejected_prediction_tokens];
    turn.first ??= sample;
    turn.last = sample;
    addSample(turn.samples, sample);
  }
}

function addText(turn, text, source) {
  turn.text += text;
  if (source) turn.counts[source] = (turn.counts[source] ?? 0) + 1;
  const run = turn.runs.at(-1);
  if (run && run[1] === source) run[0] += text.length;
  else turn.runs.push([text.length, source]);
}

const ENDS = { length: "cut at the limit of tokens", stopped: "stopped" };

function figuresOf(turn) {
  const parts = turn.end in ENDS ? [ENDS[turn.end]] : [];
  if (turn.last) {
    const [ms, tokens, accepted, rejected] = turn.last, [firstMs, firstTokens] = turn.first;
    const speed = ms > firstMs ? `, ${((tokens - firstTokens) / (ms - firstMs) * 1000).toFixed(0)} a second` : "";
    const counts = Object.entries(turn.counts).map(([source, count]) => `${source} ${count}`).join(", ");
    parts.push(`${tokens} tokens${speed}`, `the first after ${(firstMs / 1000).toFixed(2)} s`);
    parts.push(`${accepted} drafted and accepted${counts && ` (${counts})`}, ${rejected} rejected`);
  }
  return parts.join("; ");
}

function newAnswer(model) {
  return { role: "assistant", model, text: "", thought: "", runs: [], counts: {}, samples: [], error: "", end: "", waiting: "waiting" };
}
