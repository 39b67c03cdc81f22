// Dark and light: as the system says, unless the reader chooses; and the colors of curves.
import { effect, signal } from "@preact/signals";

/** @typedef {"system"|"light"|"dark"} Theme */
export const theme = signal(/** @type {Theme} */ (localStorage.getItem("theme") ?? "system"));

effect(() => {
  document.documentElement.dataset.theme = theme.value;
  localStorage.setItem("theme", theme.value);
});

/** The next choice of the switch. */
export function nextTheme() {
  const order = /** @type {Theme[]} */ (["system", "light", "dark"]);
  theme.value = order[(order.indexOf(theme.value) + 1) % order.length];
}

/** Colors that differ on both themes, and for people who cannot tell red from green (after Okabe and Ito 2008). */
const COLORS = [
  "#3b82c4", "#e08214", "#1b9e77", "#c0399f", "#d6604d", "#7b6fd0", "#a6761d", "#4db6d0", "#86a82a", "#8d8d8d",
];

/** @param {number} index */
export function colorOf(index) {
  return COLORS[index % COLORS.length];
}
