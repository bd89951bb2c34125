// Light or dark: as the system says, until someone chooses. Nothing is stored: a page may be where it cannot be.
import { useEffect, useState } from "preact/hooks";

export type Theme = "auto" | "light" | "dark";

export function nextTheme(theme: Theme): Theme {
  return theme === "auto" ? "dark" : theme === "dark" ? "light" : "auto";
}

/** The theme chosen, whether it comes out dark, and how to choose. Printing is always light. */
export function useTheme(): [Theme, boolean, (theme: Theme) => void] {
  const query = window.matchMedia("(prefers-color-scheme: dark)");
  const [theme, setTheme] = useState<Theme>("auto");
  const [isSystemDark, setSystemDark] = useState(query.matches);
  const [isPrinting, setPrinting] = useState(false);
  useEffect(() => {
    const change = () => setSystemDark(query.matches);
    const before = () => setPrinting(true);
    const after = () => setPrinting(false);
    query.addEventListener("change", change);
    window.addEventListener("beforeprint", before);
    window.addEventListener("afterprint", after);
    return () => {
      query.removeEventListener("change", change);
      window.removeEventListener("beforeprint", before);
      window.removeEventListener("afterprint", after);
    };
  }, []);
  const isDark = !isPrinting && (theme === "dark" || (theme === "auto" && isSystemDark));
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
  return [theme, isDark, setTheme];
}
