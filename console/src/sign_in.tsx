/** Signing in. What ended the last session is said here. */

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Mark } from "./components/mark.tsx";
import { asApiError, type ApiError } from "./errors.ts";
import { notice, signIn } from "./session.ts";

const WORDS: Record<string, string> = {
  unauthenticated: "The user name or the password is wrong.",
  locked_out: "Too many wrong passwords. The account is locked for a while.",
  rate_limited: "Too many attempts from here. Wait a moment.",
};

export default function SignIn() {
  const user = useRef<HTMLInputElement>(null);
  const password = useRef<HTMLInputElement>(null);
  const error = useSignal<ApiError | null>(null);
  const isBusy = useSignal(false);
  useEffect(() => {
    document.title = "Sign in · tablecast";
    user.current?.focus();
  }, []);
  const submit = async (event: Event) => {
    event.preventDefault();
    isBusy.value = true;
    error.value = null;
    try {
      await signIn(user.current!.value, password.current!.value);
    } catch (caught) {
      error.value = asApiError(caught);
      password.current?.select();
    } finally {
      isBusy.value = false;
    }
  };
  return (
    <main class="sign-in">
      <form onSubmit={(event) => void submit(event)}>
        <Mark size={44} />
        <h1>Sign in to tablecast</h1>
        <p class="faint">{location.host}</p>
        {notice.value && (
          <p class="notice" role="status">
            {notice.value}
          </p>
        )}
        <label for="user">User</label>
        <input
          id="user"
          ref={user}
          name="username"
          autocomplete="username"
          autocapitalize="none"
          spellcheck={false}
          required
        />
        <label for="password">Password</label>
        <input id="password" ref={password} name="password" type="password" autocomplete="current-password" required />
        {error.value && (
          <p class="form-error" role="alert">
            {WORDS[error.value.code] ?? error.value.message} <code>{error.value.code}</code>
          </p>
        )}
        <button type="submit" class="primary" disabled={isBusy.value}>
          {isBusy.value ? "Signing in …" : "Sign in"}
        </button>
      </form>
    </main>
  );
}
