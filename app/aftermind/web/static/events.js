// A list that follows a stream of server-sent events: [data-events] holds its address, [data-kinds] the names to hear.
"use strict";

(() => {
  const MOST = 300;
  const TONES = {
    MemoryUpdateCompleted: "good", MemoryFactsExtracted: "good", MemoryEmbedded: "good", MemoryUpdateFailed: "bad",
    MemoryUpdateStarted: "accent", MemoryUpdateQueued: "accent", gap: "warn",
  };
  const SHOWN_APART = new Set(["event", "at", "namespace", "user_id", "id", "cursor", "watermark"]);

  const follow = (box) => {
    const list = box.querySelector("[data-list]");
    const none = box.querySelector("[data-none]");
    const state = box.querySelector("[data-state]");
    const only = box.querySelector("[data-only]");
    const pause = box.querySelector("[data-pause]");
    const seen = new Set();
    const held = [];
    const say = (text, tone) => { state.textContent = text; state.className = `badge dot ${tone}`; };

    const fits = (item) => !only || !only.value || item.dataset.kind === only.value;
    const show = (event) => {
      let data = {};
      try { data = JSON.parse(event.data); } catch { /* a gap has no body worth the name */ }
      if (data.id && seen.has(data.id)) return;
      if (data.id) seen.add(data.id);
      const item = document.createElement("li");
      item.dataset.kind = event.type;
      const at = document.createElement("time");
      at.dateTime = at.title = data.at || "";
      at.textContent = (data.at || "").slice(11, 19);
      const kind = document.createElement("span");
      kind.className = `badge ${TONES[event.type] || ""}`;
      kind.textContent = event.type.replace(/^Memory/, "");
      const told = document.createElement("span");
      told.className = "soft small";
      told.textContent = Object.entries(data)
        .filter(([name, value]) => !SHOWN_APART.has(name) && value !== null && value !== "")
        .map(([name, value]) => {
          const text = typeof value === "number" && !Number.isInteger(value) ? value.toFixed(1) : String(value);
          return `${name.replaceAll("_", " ")} ${name.endsWith("_id") && text.length > 20 ? "…" + text.slice(-8) : text}`;
        }).join(" · ");
      const line = document.createElement("div");
      line.append(kind, " ", told);
      item.append(at, line);
      item.hidden = !fits(item);
      if (Date.now() - Date.parse(data.at) < 10_000) item.className = "fresh";
      list.prepend(item);
      if (none) none.hidden = true;
      while (list.children.length > MOST) list.lastElementChild.remove();
    };

    const source = new EventSource(box.dataset.events);
    source.onopen = () => say("live", "good");
    source.onerror = () => say(source.readyState === EventSource.CLOSED ? "refused" : "reconnecting", "warn");
    for (const kind of box.dataset.kinds.split(" ")) {
      source.addEventListener(kind, (event) => {
        if (pause && pause.getAttribute("aria-pressed") === "true") held.push(event);
        else show(event);
      });
    }
    if (pause) {
      pause.addEventListener("click", () => {
        const stop = pause.getAttribute("aria-pressed") !== "true";
        pause.setAttribute("aria-pressed", String(stop));
        pause.textContent = stop ? "Resume" : "Pause";
        if (!stop) held.splice(0).forEach(show);
      });
    }
    if (only) {
      only.addEventListener("change", () => { for (const item of list.children) item.hidden = !fits(item); });
    }
    addEventListener("pagehide", () => source.close());
  };

  document.querySelectorAll("[data-events]").forEach(follow);
})();
