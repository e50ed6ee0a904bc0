// Starts threads with a name, visible in process listings, and with signals blocked: signals belong to the program's
// main thread and would be lost on another.
#pragma once

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace cloudedge::cube {

template <class Run>
std::thread start_thread(const char* name, Run run) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // inherited by the new thread
  std::thread thread(std::move(run));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace cloudedge::cube
