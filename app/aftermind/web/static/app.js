// Behaviour of the console beyond links and forms.
"use strict";

(() => {
  const root = document.documentElement;

  // Theme: kept in a cookie, so that the server renders the next page with it.
  const buttons = document.querySelectorAll("[data-set-theme]");
  const show = (theme) => {
    root.dataset.theme = theme;
    for (const each of buttons) each.setAttribute("aria-pressed", String(each.dataset.setTheme === theme));
    document.dispatchEvent(new CustomEvent("theme"));
  };
  for (const each of buttons) {
    each.addEventListener("click", () => {
      document.cookie = `theme=${each.dataset.setTheme}; path=/; max-age=31536000; samesite=lax`;
      show(each.dataset.setTheme);
    });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show(root.dataset.theme));

  const current = document.querySelector(".side nav [aria-current]");
  if (current) current.parentElement.scrollLeft = current.offsetLeft - 60;

  // Destructive actions ask for confirmation in a dialog: `data-ask` is its text, `data-yes` the label of its button.
  const dialog = document.getElementById("ask");
  const ask = (source, proceed) => {
    dialog.querySelector("h2").textContent = source.dataset.askTitle || "Are you sure?";
    dialog.querySelector("p").textContent = source.dataset.ask;
    const yes = dialog.querySelector("[value=yes]");
    yes.textContent = source.dataset.yes || "Continue";
    yes.classList.toggle("danger", !source.dataset.harmless);
    dialog.returnValue = "";
    dialog.addEventListener("close", () => { if (dialog.returnValue === "yes") proceed(); }, { once: true });
    dialog.showModal();
  };
  document.addEventListener("htmx:confirm", (event) => {
    const source = event.target.closest("[data-ask]");
    if (!source) return;
    event.preventDefault();
    ask(source, () => event.detail.issueRequest(true));
  });
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.dataset.ask || form.hasAttribute("hx-post") || form.dataset.answered) return;
    event.preventDefault();
    ask(form, () => { form.dataset.answered = "yes"; form.requestSubmit(event.submitter); });
  });

  // A hidden page sends no requests; it updates when it becomes visible.
  document.addEventListener("htmx:beforeRequest", (event) => {
    const live = (event.detail.elt.getAttribute("hx-trigger") || "").includes("every");
    if (live && document.hidden) event.preventDefault();
  });

  // Forms that send themselves when a choice changes, and textareas that send by Ctrl+Enter or Enter.
  document.addEventListener("change", (event) => {
    if (event.target.closest("[data-at-once]")) event.target.form.requestSubmit();
  });
  document.addEventListener("keydown", (event) => {
    const text = event.target.closest("textarea[data-enter]");
    if (text && event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (text.value.trim()) text.form.requestSubmit();
    }
    if (event.key === "/" && !event.target.closest("input, textarea, select, [contenteditable]")) {
      const search = document.querySelector("[data-search]");
      if (search) { event.preventDefault(); search.focus(); }
    }
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    const form = event.detail.elt;
    if (form.matches("form[data-reset]") && event.detail.successful) form.reset();
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    const anchor = event.detail.target.querySelector("[data-scroll-here]:last-child");
    if (anchor) anchor.scrollIntoView({ block: "nearest" });
  });
})();
