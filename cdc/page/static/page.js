"use strict";
// Replaces the sections that changed; says within seconds that the daemon does not answer.
const SILENT_MS = 4000;
const AGAIN_MS = 3000;
let timer;

function heard() {
  clearTimeout(timer);
  timer = setTimeout(lost, SILENT_MS);
  setLive(true);
}

function lost() {
  setLive(false);
}

function setLive(live) {
  if (document.documentElement.dataset.live === String(live)) return;
  document.documentElement.dataset.live = live;
  const since = new Date().toISOString().slice(11, 19);
  document.getElementById("silence").textContent = live
    ? ""
    : `The daemon does not answer since ${since} UTC. The page shows its last state.`;
  document.getElementById("live").textContent = live ? "live" : "no answer";
}

function replace(html) {
  const fresh = new DOMParser().parseFromString(html, "text/html");
  for (const section of fresh.querySelectorAll("[data-part]")) {
    const shown = document.getElementById(section.id);
    if (!shown || shown.outerHTML === section.outerHTML) continue;
    const focused = shown.contains(document.activeElement) ? document.activeElement.id : "";
    const left = [...shown.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
    shown.replaceWith(document.adoptNode(section));
    section.querySelectorAll(".scroll").forEach((each, n) => (each.scrollLeft = left[n] || 0));
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }
}

function listen() {
  const events = new EventSource("/page/events");
  events.addEventListener("page", (event) => (heard(), replace(event.data)));
  events.addEventListener("tick", heard);
  events.onerror = () => {
    lost();
    if (events.readyState === EventSource.CLOSED) setTimeout(listen, AGAIN_MS);
  };
}

listen();
