// Runs once in the picture's component: `element` is its root, `trigger` sends events to Python.
const caption = () => element.querySelector("figcaption");
let spoken = null, cursor = 0;
const tokenAt = (number) => element.querySelector(`rect[data-token="${number}"]`);
const say = (rect) => { if (rect && caption()) caption().textContent = rect.dataset.says; };
const focusToken = (rect) => {
  if (!rect) return;
  element.querySelectorAll("rect.cursor").forEach((other) => other.classList.remove("cursor"));
  rect.classList.add("cursor");
  cursor = Number(rect.dataset.token);
  say(rect);
};
const pick = (rect) => { if (rect) { cursor = Number(rect.dataset.token); trigger("select", { token: cursor }); } };

element.addEventListener("pointermove", (event) => {
  const rect = event.target.closest("rect[data-token]");
  if (rect && rect !== spoken) { spoken = rect; say(rect); }
});
element.addEventListener("pointerdown", (event) => {
  const rect = event.target.closest("rect[data-token]");
  if (rect) cursor = Number(rect.dataset.token);
});
element.addEventListener("click", (event) => { if (event.target.closest("svg")) pick(tokenAt(cursor)); });
element.addEventListener("focusin", () => focusToken(tokenAt(cursor) || tokenAt(0)));
element.addEventListener("keydown", (event) => {
  const rect = tokenAt(cursor);
  if (!rect || !event.target.closest("svg")) return;
  if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(rect); return; }
  const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const step = steps[event.key];
  if (!step) return;
  event.preventDefault();
  // the nearest token in that direction, so that tiles and frames are crossed too
  const box = rect.getBBox(), x = box.x + box.width / 2, y = box.y + box.height / 2;
  let best = null, least = Infinity;
  element.querySelectorAll("rect[data-token]").forEach((other) => {
    const its = other.getBBox(), dx = its.x + its.width / 2 - x, dy = its.y + its.height / 2 - y;
    const along = dx * step[0] + dy * step[1], aside = Math.abs(dx * step[1]) + Math.abs(dy * step[0]);
    if (along > 0.5 && along + 3 * aside < least) { least = along + 3 * aside; best = other; }
  });
  focusToken(best);
});
