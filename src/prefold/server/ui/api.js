// API: asks the admin plane, with the token that the reader typed in.
//
// The token is kept in sessionStorage: a reload keeps it, closing the tab ends it, no other
// tab, port or site can read it, and unlike a cookie it goes along only where this module
// puts it. It never stands in an address.

const KEY = "prefold.admin_token";
const TOKEN = /^[!-~]{32,512}$/;

/** An answer that is no success; the message says what to change. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export class Api {
  #token = sessionStorage.getItem(KEY);

  get hasToken() {
    return this.#token !== null;
  }

  /** Take a token; false if it can be none. */
  keep(token) {
    if (!TOKEN.test(token)) return false;
    this.#token = token;
    sessionStorage.setItem(KEY, token);
    return true;
  }

  forget() {
    this.#token = null;
    sessionStorage.removeItem(KEY);
  }

  get(path, fields = {}) {
    const given = Object.entries(fields).filter(([, value]) => value !== null);
    const query = new URLSearchParams(given).toString();
    return this.#ask("GET", query ? `${path}?${query}` : path);
  }

  post(path, body = {}) {
    return this.#ask("POST", path, body);
  }

  async #ask(method, path, body) {
    const headers = { authorization: `Bearer ${this.#token}` };
    if (body !== undefined) headers["content-type"] = "application/json";
    let answer;
    try {
      answer = await fetch(path, {
        method,
        headers,
        body: body === undefined ? undefined : JSON.stringify(body),
        cache: "no-store",
        credentials: "omit",
        redirect: "error",
      });
    } catch {
      throw new ApiError(0, "the server does not answer");
    }
    const found = await answer.json().catch(() => null);
    if (answer.ok && found !== null) return found;
    throw new ApiError(answer.status, found?.error?.message ?? `status ${answer.status}`);
  }
}
