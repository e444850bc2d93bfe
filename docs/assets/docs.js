// What Material leaves out for keyboards and screen readers.
document.querySelector("[data-md-component=search]")?.setAttribute("aria-label", "Search");
for (const box of document.querySelectorAll(".md-typeset table, .md-typeset pre code, .md-typeset pre, .highlight-ipynb")) {
  if (getComputedStyle(box).overflowX === "auto") box.tabIndex = 0;
}
