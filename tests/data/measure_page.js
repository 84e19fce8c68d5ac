// What of a page is wider than its window and does not scroll in a place of its own (tests/report/test_page_in_browser.py).
addEventListener("load", () => {
  const wide = document.documentElement.clientWidth, cut = [];
  const scrolls = (one) => one.closest(".wide, pre, svg, [hidden]");
  let furthest = 0;
  for (const one of document.querySelectorAll("body *")) {
    const box = one.getBoundingClientRect();
    if (!box.width || (scrolls(one) && !one.matches(".wide, pre"))) continue;
    furthest = Math.max(furthest, box.right);
    if (box.right > wide + 1 || box.left < -1) cut.push(`${one.tagName}.${one.className} of ${one.closest("section")?.id}: ${one.textContent.slice(0, 60)}`);
  }
  const shown = [...document.querySelectorAll("svg.picture")].filter((one) => one.getBoundingClientRect().width > 0).length;
  const keys = [...document.querySelectorAll("a:not([role=tab]), button, summary, table.sortable th, .wide")].filter((one) => one.tabIndex < 0).length;
  parent.postMessage(JSON.stringify([wide, furthest, shown, keys, cut]), "*");
});
