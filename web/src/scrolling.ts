// What is wider than its place scrolls, also with the keyboard.

import { useEffect, useRef } from "preact/hooks";

/** Returns a reference for an element that scrolls; it can be focused as long as there is something to scroll. */
export function useScrolling<T extends HTMLElement>(content: unknown) {
  const place = useRef<T>(null);
  useEffect(() => {
    const box = place.current;
    if (!box) return undefined;
    const check = () => {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    };
    const watch = new ResizeObserver(check);
    watch.observe(box);
    check();
    return () => watch.disconnect();
  }, [content]);
  return place;
}
