/**
 * Who is signed in. The access token lives in memory only; the refresh token in sessionStorage, so that a reload of this
 * tab goes on and another tab knows nothing. Neither is ever part of an address.
 */

import { computed, signal } from "@preact/signals";
import { ApiError, asApiError } from "./errors.ts";
import { request } from "./http.ts";
import { allows, type Action, type Role } from "./roles.ts";

export interface Me {
  user: string;
  role: Role;
}

interface Granted extends Me {
  access_token: string;
  refresh_token: string;
  expires_in: number;
}

const REFRESH_TOKEN = "tablecast.refresh";
const RENEW_AT = 0.8; // of a token's life: the rest is for a server that is away for a moment
const RENEW_AGAIN_MS = 5_000; // after a renewal that could not reach the server
const MAX_TIMER_MS = 2 ** 31 - 1; // a longer one fires at once

/** Null: nobody. */
export const me = signal<Me | null>(null);
/** What happened, for the sign-in page: why a session ended. */
export const notice = signal<string | null>(null);
/** A reload is finding out whether its refresh token is still good. */
export const isRestoring = signal(sessionStorage.getItem(REFRESH_TOKEN) !== null);
export const role = computed<Role>(() => me.value?.role ?? "user");

let access: string | null = null;
let renewal: Promise<void> | null = null;
let timer: ReturnType<typeof setTimeout> | undefined;

export function may(action: Action): boolean {
  return me.value !== null && allows(role.value, action);
}

export async function signIn(user: string, password: string): Promise<void> {
  take(await request<Granted>("POST", "auth/login", { user, password }));
}

export function signOut(why: string | null = null): void {
  access = null;
  clearTimeout(timer);
  sessionStorage.removeItem(REFRESH_TOKEN);
  me.value = null;
  notice.value = why;
}

/** After a reload: goes on with the tab's refresh token, if there is one. */
export async function restore(): Promise<void> {
  while (isRestoring.value) {
    try {
      await renew();
      isRestoring.value = false;
    } catch (error) {
      if (asApiError(error).code !== "unreachable") return void (isRestoring.value = false);
      notice.value = "The server does not answer. Trying again …";
      await new Promise((resolve) => setTimeout(resolve, RENEW_AGAIN_MS));
    }
  }
}

/** A token to send. `refused`: the server did not take the last one, so get another. */
export async function accessToken(refused = false): Promise<string> {
  if (access === null || refused) await renew();
  if (access === null) throw new ApiError("unauthenticated", "sign in first", {}, 401);
  return access;
}

/** All who need a new token at the same time wait for the same one: a refresh token is good for one use. */
function renew(): Promise<void> {
  renewal ??= renewed().finally(() => (renewal = null));
  return renewal;
}

async function renewed(): Promise<void> {
  const token = sessionStorage.getItem(REFRESH_TOKEN);
  if (token === null) throw new ApiError("unauthenticated", "sign in first", {}, 401);
  try {
    take(await request<Granted>("POST", "auth/refresh", { refresh_token: token }));
  } catch (error) {
    const { code, message } = asApiError(error);
    if (code === "unauthenticated") signOut(`You were signed out: ${message}.`);
    throw error;
  }
}

function take(granted: Granted): void {
  access = granted.access_token;
  sessionStorage.setItem(REFRESH_TOKEN, granted.refresh_token);
  notice.value = null;
  if (me.value?.user !== granted.user || me.value.role !== granted.role) {
    me.value = { user: granted.user, role: granted.role };
  }
  renewAfter(granted.expires_in * 1000 * RENEW_AT);
}

function renewAfter(ms: number): void {
  clearTimeout(timer);
  timer = setTimeout(
    () => void renew().catch(() => me.value && renewAfter(RENEW_AGAIN_MS)),
    Math.min(ms, MAX_TIMER_MS),
  );
}
