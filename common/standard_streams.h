// Standard input, output and error that are really there.
#pragma once

namespace kvtier {

// A program may be started with some of its three standard descriptors closed. The next file or
// socket that it opens would then get that number, and what is printed would go into it: a log line
// into a payload file, an answer to a peer. So each that is closed becomes one that can hold
// nothing: reading finds the end, writing output fails (and is noticed), writing errors is lost.
// Call it first in main, before anything else is opened.
void HoldStandardStreams();

}  // namespace kvtier
