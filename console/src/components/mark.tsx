/** The mark of tablecast: rows, and waves that leave them. As icon.svg. */

export function Mark(props: { size: number }) {
  return (
    <svg viewBox="0 0 32 32" width={props.size} height={props.size} aria-hidden="true">
      <rect width="32" height="32" rx="7" fill="#0f766e" />
      <path d="M7 9h8v4H7zm0 6h8v4H7zm0 6h8v3H7z" fill="#fff" />
      <path
        d="M19 11a6 6 0 0 1 0 10M22 8a10 10 0 0 1 0 16"
        fill="none"
        stroke="#99f6e4"
        stroke-width="2.4"
        stroke-linecap="round"
      />
    </svg>
  );
}
