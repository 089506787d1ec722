/** Runs the newest of several calls, a moment after the last one; what an older one brings is dropped. */

/**
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} work @param {(result: T) => void} done @param {(error: any) => void} failed
 * @param {AbortSignal} ended
 */
export function later(work, done, failed, ended) {
  let timer = 0;
  /** @type {AbortController | null} */
  let running = null;
  const stop = () => {
    clearTimeout(timer);
    running?.abort();
  };
  ended.addEventListener("abort", stop);
  return (/** @type {number} */ pause) => {
    stop();
    const own = (running = new AbortController());
    timer = setTimeout(async () => {
      try {
        const result = await work(own.signal);
        if (!own.signal.aborted) done(result);
      } catch (error) {
        if (!own.signal.aborted) failed(error);
      }
    }, pause);
  };
}
