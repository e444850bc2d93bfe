// Four small things that a page does by itself; without this file every page still works.
"use strict";

// A part of a page that follows a stream of events.
for (const place of document.querySelectorAll("[data-live]")) {
  const stream = new EventSource(place.dataset.live);
  stream.addEventListener("state", (event) => {
    htmx.swap(place, event.data, { swapStyle: "innerHTML" });
  });
  stream.addEventListener("end", (event) => {
    stream.close();
    if (event.data) {
      document.querySelector("[data-live-end]").textContent = event.data;
    }
  });
}

// A form whose answer is a file: show what it changed once the file is here.
for (const form of document.querySelectorAll("form[data-reload]")) {
  form.addEventListener("submit", () => setTimeout(() => location.reload(), 1500));
}

// The cost of a run is out of date as soon as its form changes.
for (const form of document.querySelectorAll("form[data-quoted]")) {
  form.addEventListener("input", (event) => {
    const price = document.getElementById("price");
    if (price.querySelector("[name=seen]") && !price.contains(event.target)) {
      price.replaceChildren(document.getElementById("price-old").content.cloneNode(true));
    }
  });
}

// A budget of the table goes into the form.
document.addEventListener("click", (event) => {
  const chosen = event.target.closest("[data-epsilon]");
  if (chosen) {
    const field = chosen.form.elements.namedItem("epsilon");
    field.value = chosen.dataset.epsilon;
    field.dispatchEvent(new Event("input", { bubbles: true }));
    field.focus();
  }
});
