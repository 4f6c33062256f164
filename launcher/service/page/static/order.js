// The order of a list, by drag and by buttons: fields are sent in the order in which they stand in the page.

for (const list of document.querySelectorAll("ol.order")) {
  let held = null;

  const move = (item, before) => {
    list.insertBefore(item, before);
    list.dispatchEvent(new CustomEvent("ordered", { bubbles: true }));
  };

  for (const button of list.querySelectorAll("button[data-move]")) button.hidden = false;
  for (const item of list.children) item.draggable = true;

  list.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-move]");
    const item = button?.closest("li");
    if (!item) return;
    if (button.dataset.move === "up" && item.previousElementSibling) move(item, item.previousElementSibling);
    if (button.dataset.move === "down" && item.nextElementSibling) move(item, item.nextElementSibling.nextElementSibling);
    button.focus();
  });
  list.addEventListener("dragstart", (event) => {
    held = event.target.closest("li");
    held?.classList.add("held");
    event.dataTransfer.effectAllowed = "move";
    event.dataTransfer.setData("text/plain", "");
  });
  list.addEventListener("dragover", (event) => {
    const over = event.target.closest("li");
    if (!held || !over) return;
    event.preventDefault();
    if (over === held) return;
    const box = over.getBoundingClientRect();
    const after = event.clientY > box.top + box.height / 2;
    move(held, after ? over.nextElementSibling : over);
  });
  list.addEventListener("drop", (event) => event.preventDefault());
  list.addEventListener("dragend", () => {
    held?.classList.remove("held");
    held = null;
  });
}

for (const button of document.querySelectorAll("button[data-mark]")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    for (const box of button.form.querySelectorAll("ol.order input[type=checkbox]")) box.checked = true;
  });
}
