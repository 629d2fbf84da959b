"use strict";
// Appends alerts as the server renders them. Their text is escaped there.
const rows = document.getElementById("live");
const state = document.getElementById("live-state");
const KEPT = 200;
const source = new EventSource(rows.dataset.source);
source.addEventListener("open", () => { state.textContent = "live"; state.className = "state on"; });
source.addEventListener("error", () => { state.textContent = "reconnecting"; state.className = "state late"; });
source.addEventListener("alert", (event) => {
  const holder = document.createElement("template");
  holder.innerHTML = event.data;
  const row = holder.content.firstElementChild;
  if (!row) return;
  row.classList.add("fresh");
  rows.prepend(row);
  document.getElementById("live-empty")?.remove();
  while (rows.children.length > KEPT) rows.lastElementChild.remove();
});
