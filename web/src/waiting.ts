// Waiting that ends early when there is reason to hope.

/** After so many milliseconds, or as soon as the network is back or somebody looks at the page again. */
export function readyAgain(milliseconds: number): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      removeEventListener("online", done);
      document.removeEventListener("visibilitychange", seen);
      resolve();
    };
    const seen = () => {
      if (!document.hidden) done();
    };
    const timer = setTimeout(done, milliseconds);
    addEventListener("online", done);
    document.addEventListener("visibilitychange", seen);
  });
}
