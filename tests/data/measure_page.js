// What of a page is wider than its window (tests/report/test_page_in_browser.py).
const wide = document.documentElement.offsetWidth, cut = [];
for (const one of document.querySelectorAll("body *")) {
  const box = one.getBoundingClientRect();
  if (box.width && !one.closest("svg") && (box.right > wide + 1 || box.left < -1)) cut.push(`${one.tagName}.${one.className} of ${one.closest("section")?.id}: ${one.textContent.slice(0, 60)}`);
  if (one.clientWidth && one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflowX !== "visible") cut.push("scrolls: " + one.closest("section")?.id);
}
const furthest = Math.max(...[...document.body.querySelectorAll("*")].map((one) => one.closest("svg") ? 0 : one.getBoundingClientRect().right));
const shown = [...document.querySelectorAll("svg.picture")].filter((one) => one.getBoundingClientRect().width > 0).length;
const keys = [...document.querySelectorAll("a, button, summary, table.sortable th")].filter((one) => one.tabIndex < 0).length;
document.body.innerHTML = "";
document.body.dataset.found = JSON.stringify([wide, furthest, shown, keys, cut]);
