/** A file that cannot be attached; the message goes on after its name. */
export class Refused extends Error {}
