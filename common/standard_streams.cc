#include "common/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/check.h"

namespace kvtier {

void HoldStandardStreams() {
  // Ascending: open takes the lowest number that is free.
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (fcntl(stream, F_GETFD) != -1) continue;
    const int flags = stream == STDERR_FILENO ? O_WRONLY : O_RDONLY;
    KVTIER_CHECK(open("/dev/null", flags) == stream);
  }
}

}  // namespace kvtier
