"use strict";
// Conversations, each under a key of its own in the browser's store, so that two tabs do not overwrite each other's.

const KEPT = "reader-edge:";

function keptConversations() {
  const kept = [];
  try {
    for (const key of Object.keys(localStorage)) {
      if (!key.startsWith(KEPT)) continue;
      const conversation = JSON.parse(localStorage.getItem(key));
      if (Array.isArray(conversation?.turns)) kept.push(conversation);
    }
  } catch { /* the browser keeps nothing, or something else wrote there */ }
  return kept.sort((one, other) => other.changed - one.changed);
}

// Returns what went wrong, or "".
function keepConversation(conversation) {
  conversation.changed = Date.now();
  conversation.title = conversation.turns[0].text.trim().slice(0, 60);
  try {
    const text = JSON.stringify(conversation, (key, value) => (key === "pictures" ? undefined : value)); // a store has 5 MB
    localStorage.setItem(KEPT + conversation.id, text);
    return "";
  } catch (error) {
    const isFull = error.name === "QuotaExceededError";
    return isFull ? "The browser's store is full: delete conversations." : "This browser keeps no conversations.";
  }
}

function dropConversation(id) {
  try {
    localStorage.removeItem(KEPT + id);
  } catch { /* nothing was kept */ }
}

function newConversation() {
  const numbers = crypto.getRandomValues(new Uint32Array(2));
  return { id: [...numbers].map((number) => number.toString(36)).join(""), title: "", changed: 0, model: "", turns: [] };
}

// A setting of the page, which may be refused.
function remember(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch { /* until the page is closed, then */ }
}

function remembered(name) {
  try {
    return localStorage.getItem(name) ?? "";
  } catch {
    return "";
  }
}
