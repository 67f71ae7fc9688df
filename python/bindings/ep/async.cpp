// SPDX-License-Identifier: Apache-2.0
// ep/async.cpp: dispatch_async and combine_async, which run on the group's own work queue.
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "../check.hpp"
#include "../docs.hpp"
#include "../interrupt.hpp"
#include "normal.hpp"
#include "options.hpp"

namespace shoal::python {
namespace {

/// A condition for asynchronous operations to wait for; set once, by any thread.
struct HostEvent {
  std::promise<void> promise;
  ep::Future future = promise.get_future().share();
  std::atomic<bool> is_set = false;

  void set() {
    if (!is_set.exchange(true)) promise.set_value();
  }
  ~HostEvent() { set(); }  // it can no longer be set otherwise
};

/// A running operation, with everything that it reads until it is done.
struct Operation {
  std::function<bool(std::chrono::milliseconds)> wait;
  std::function<nb::object()> take;
  nb::object group;
  NormalOptions options;
  std::optional<Input> rows;
};

/// Operations whose Future is gone although they still run, because Ctrl-C ended a wait for them or
/// this process is a fork. With the GIL held. Never destroyed, as it may hold Python objects at the
/// end of the program.
std::vector<Operation>& left_running() {
  static auto* const operations = new std::vector<Operation>;
  return *operations;
}

void release_finished() {
  std::erase_if(left_running(),
                [](const Operation& one) { return one.wait(std::chrono::milliseconds(0)); });
}

struct Future {
  Operation operation;
  bool interrupted = false;
  pid_t process = getpid();  ///< a child that it forks has no thread that ends the operation

  bool done() const { return !operation.take || operation.wait(std::chrono::milliseconds(0)); }

  nb::object result() {
    require(static_cast<bool>(operation.take), Code::invalid_argument, kOnce);
    require(getpid() == process, Code::closed,
            "result: this process is a fork of the one that started the operation");
    await();
    if (raise_interrupt()) throw nb::python_error();
    require(static_cast<bool>(operation.take), Code::invalid_argument, kOnce);
    return std::exchange(operation.take, nullptr)();
  }

  /// The inputs stay until the operation is done.
  ~Future() {
    if (!operation.take) return;
    if (!interrupted && getpid() == process) await();
    if (!done()) left_running().push_back(std::move(operation));
  }

 private:
  static constexpr const char* kOnce = "result() of a Future is taken once";

  /// Waits for the operation, or for Ctrl-C in the main thread. Ends once the operation has
  /// started: every wait inside has its deadline.
  void await() {
    nb::gil_scoped_release released;
    interrupted = false;
    while (!operation.wait(std::chrono::milliseconds(20)) && !interrupted)
      interrupted = check_signals();
  }
};

/// Starts an operation on `array`. `launch_of(options)` selects its Launch, `start(group, view,
/// options)` returns its std::future, `finish(group, library, result, stream)` converts its result.
template <typename LaunchOf, typename Start, typename Finish>
std::unique_ptr<Future> begin(nb::handle_t<Group> group, nb::handle array, const char* what,
                              NormalOptions options, const LaunchOf& launch_of, const Start& start,
                              const Finish& finish) {
  release_finished();
  auto future = std::make_unique<Future>();
  Operation& operation = future->operation;
  operation.group = nb::borrow(group);
  operation.options = std::move(options);
  operation.rows = input(array, what, operation.options.dtype);
  auto& self = nb::cast<Group&>(group);
  ep::Launch& launch = launch_of(operation.options);
  follow(launch, self, *operation.rows);
  auto running = std::make_shared<decltype(start(self.group, TensorView{}, operation.options))>(
      start(self.group, operation.rows->view, operation.options));
  operation.wait = [running](std::chrono::milliseconds time) {
    return running->wait_for(time) == std::future_status::ready;
  };
  operation.take = [running, finish, &self, library = library_of(array),
                    stream = launch.stream]() -> nb::object {
    return nb::cast(finish(self, library, running->get(), stream));
  };
  return future;
}

/// after=, where it is a HostEvent, and the other arguments. The HostEvent itself is not kept: an
/// operation starts when its event is collected and can no longer be set.
struct After {
  ep::Future future;
  nb::kwargs rest;

  explicit After(const nb::kwargs& given) {
    for (const auto& [key, value] : given) {
      if (nb::cast<std::string>(key) == "after" && nb::isinstance<HostEvent>(value)) {
        future = nb::cast<const HostEvent&>(value).future;
      } else {
        rest[key] = value;
      }
    }
  }
};

std::unique_ptr<Future> dispatch_async(nb::handle_t<Group> self, nb::handle x, nb::handle layout,
                                       const nb::kwargs& given) {
  const Routing* const routing = routing_from(layout);
  const After after(given);
  refuse_gradient("dispatch_async", "x", x, kDispatchWithGradient);
  return begin(
      self, x, "x", dispatch_options_from("dispatch_async", after.rest),
      [](NormalOptions& options) -> ep::Launch& { return options.dispatch.launch; },
      [&](ep::Group& group, const TensorView& view, const NormalOptions& options) {
        require(routing != nullptr, Code::invalid_argument,
                "dispatch_async needs a Routing, got a Handle");
        return ep::detail::dispatch_async(group, view, routing->routing, options.dispatch,
                                          after.future);
      },
      [](const Group& group, const Library* library, ep::detail::AnyDispatched result,
         Stream stream) { return to_python(group, library, std::move(result), stream); });
}

std::unique_ptr<Future> combine_async(nb::handle_t<Group> self, nb::handle y,
                                      nb::handle given_handle, const nb::kwargs& given) {
  const ep::Handle& handle = handle_from("combine_async", given_handle);
  nb::object out = given.contains("out") ? nb::borrow(given["out"]) : nb::none();
  const After after(given);
  refuse_gradient("combine_async", "y", y, kCombineWithGradient);
  return begin(
      self, y, "y", combine_options_from("combine_async", after.rest),
      [](NormalOptions& options) -> ep::Launch& { return options.combine.launch; },
      [&](ep::Group& group, const TensorView& view, const NormalOptions& options) {
        return group.combine_async(view, handle, options.combine, after.future);
      },
      [out](const Group& group, const Library* library, ep::Combined result, Stream stream) {
        return to_python(group, library, std::move(result), stream, out);
      });
}

}  // namespace

void bind_async(nb::module_& module, nb::class_<Group>& group) {
  nb::class_<HostEvent>(
      module, "HostEvent",
      "A condition for after= of dispatch_async and combine_async; set once, by any thread."_doc)
      .def(nb::init<>(), "Not set."_doc)
      .def("__repr__",
           [](const HostEvent& self) {
             return fmt::format("shoal.ep.HostEvent({})", self.is_set.load() ? "set" : "not set");
           })
      .def("set", &HostEvent::set, "Lets waiting operations start; later calls have no effect."_doc)
      .def_prop_ro(
          "is_set", [](const HostEvent& self) { return self.is_set.load(); },
          "True if it is set."_doc);
  nb::class_<Future>(module, "Future", nb::is_generic(),
                     nb::sig("class Future(typing.Generic[R_co])"),
                     "A running asynchronous operation."_doc)
      .def("__repr__",
           [](const Future& self) {
             const bool taken = !self.operation.take;
             return fmt::format("shoal.ep.Future({})", taken         ? "taken"
                                                       : self.done() ? "done"
                                                                     : "running");
           })
      .def("done", &Future::done, "True if result() returns without waiting."_doc)
      .def("result", &Future::result, nb::sig("def result(self) -> R_co"),
           "Waits for the result and returns it, once; raises the error of the operation."_doc);
  group
      .def(
          "dispatch_async", &dispatch_async, nb::arg("x").none(), nb::arg("routing") = nb::none(),
          nb::arg("options"),
          nb::sig(
              "def dispatch_async(self, x: A, routing: Routing[shoal.typing.SupportsDLPack], *, "
              "weights: shoal.typing.SupportsDLPack | None = None, scales: "
              "shoal.typing.SupportsDLPack | None = None, dtype: shoal.typing.DType | None = None, "
              "expert_alignment: int = 1, expert_major: bool = False, worst_case_rows: int = 0, "
              "copy_out: bool = False, transient: bool = False, stream: shoal.typing.Stream | None "
              "= None, after: shoal.typing.Event | HostEvent | None = None, done: "
              "shoal.typing.Event | None = None, sms: int = 0) -> Future[Dispatched[A]]"),
          "dispatch on the group's own work queue, which runs operations one after another. "
          "Arrays must stay unchanged until the Future is done. after: also a HostEvent, for "
          "which the operation waits."_doc)
      .def("combine_async", &combine_async, nb::arg("y").none(), nb::arg("handle") = nb::none(),
           nb::arg("options"),
           nb::sig(
               "def combine_async(self, y: A, handle: Handle, *, weights: "
               "shoal.typing.SupportsDLPack | None = None, quantize: str = 'none', bias: "
               "shoal.typing.SupportsDLPack | "
               "collections.abc.Sequence[shoal.typing.SupportsDLPack | None] | None = (), dtype: "
               "shoal.typing.DType | None = None, out: shoal.typing.SupportsDLPack | None = None, "
               "unsummed: bool = False, stream: shoal.typing.Stream | None = None, after: "
               "shoal.typing.Event | HostEvent | None = None, done: shoal.typing.Event | None = "
               "None, sms: int = 0) -> Future[Combined[A]]"),
           "combine on the group's own work queue, as dispatch_async."_doc);
}

}  // namespace shoal::python
