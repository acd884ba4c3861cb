/** Light or dark: as the system is, until somebody says otherwise in this browser. */

import { computed, effect, signal } from "@preact/signals";

export type Theme = "light" | "dark";

const KEY = "tablecast.theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const systemIsDark = signal(system.matches);
const stored = localStorage.getItem(KEY);
const chosen = signal<Theme | null>(stored === "light" || stored === "dark" ? stored : null);

export const theme = computed<Theme>(() => chosen.value ?? (systemIsDark.value ? "dark" : "light"));

system.addEventListener("change", ({ matches }) => (systemIsDark.value = matches));
effect(() => void (document.documentElement.dataset.theme = theme.value));

export function switchTheme(): void {
  chosen.value = theme.value === "dark" ? "light" : "dark";
  localStorage.setItem(KEY, chosen.value);
}

/** A custom property of the style sheet, for what draws by itself. Depends on `theme`. */
export function colour(name: string): string {
  void theme.value;
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
