"use strict";
// A click (or Enter) on a column name sorts a table; on a cell, it lists the runs behind the cell.
const runs = JSON.parse(document.getElementById("runs-data").textContent);
const valueOf = (cell) => cell === undefined ? "" : cell.dataset.v !== undefined ? Number(cell.dataset.v) : cell.textContent;
function sort(head) {
  const column = head.cellIndex, body = head.closest("table").tBodies[0];
  const down = head.getAttribute("aria-sort") !== "ascending" ? 1 : -1;
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down === 1 ? "ascending" : "descending");
  const rank = (v) => typeof v === "number" ? 0 : /^(–|n\/a)/.test(v) ? 2 : 1;  // missing values come last
  const order = (x, y) => {
    const a = valueOf(x.cells[column]), b = valueOf(y.cells[column]);
    if (rank(a) !== rank(b)) return rank(a) - rank(b);
    return down * (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
  };
  body.append(...[...body.rows].sort(order));
}
function show(cell) {
  const box = document.getElementById("runs-behind"), list = box.querySelector("ul");
  const ids = runs[cell.dataset.r];
  box.querySelector("b").textContent = `${cell.textContent} — from ${ids.length} run${ids.length === 1 ? "" : "s"}`;
  list.replaceChildren(...ids.map((id) => {
    const item = document.createElement("li"), link = document.createElement("a"), name = document.createElement("code");
    name.textContent = id; link.href = `#run-${encodeURIComponent(id)}`; link.append(name); item.append(link);
    return item;
  }));
  box.classList.add("open");
}
function act(event) {
  const head = event.target.closest("thead th"), cell = event.target.closest("[data-r]");
  if (head) sort(head); else if (cell) show(cell); else if (event.target.closest("#runs-behind button")) close();
}
function close() { document.getElementById("runs-behind").classList.remove("open"); }
document.addEventListener("click", act);
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.target.closest("thead th, [data-r]")) act(event);
  if (event.key === "Escape") close();
});
document.querySelectorAll('a[href^="#run-"]').forEach((a) => a.addEventListener("click", close));
window.addEventListener("hashchange", () => { const t = document.getElementById(decodeURIComponent(location.hash.slice(1))); if (t) { const d = t.closest("details"); if (d) d.open = true; t.scrollIntoView(); } });
window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
