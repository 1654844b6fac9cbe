// Tables that scroll can be reached by the keyboard, as code can.
document$.subscribe(() => requestAnimationFrame(() => {
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) {
    if (table.scrollWidth <= table.clientWidth) continue;
    table.tabIndex = 0;
    table.setAttribute("role", "group");
    table.setAttribute("aria-label", "Table");
  }
}));
// Who has no mouse opens the menu and its parts by Enter or Space.
const menu = document.querySelector("label.md-header__button[for=__drawer]");
menu.tabIndex = 0;
menu.setAttribute("role", "button");
menu.setAttribute("aria-label", "Menu");
addEventListener("keydown", (event) => {
  const enter = event.key === "Enter" && event.target === menu;
  if (event.target.tagName !== "LABEL" || (event.key !== " " && !enter)) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  event.target.click();
}, true);
