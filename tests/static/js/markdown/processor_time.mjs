/** The milliseconds that a processor spends on a call: by the clock, a busy machine would be a slow program. */
export function processorTime(call) {
  const before = process.cpuUsage();
  call();
  const { user, system } = process.cpuUsage(before);
  return (user + system) / 1000;
}
