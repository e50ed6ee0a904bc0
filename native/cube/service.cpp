#include "service.hpp"

#include <algorithm>
#include <utility>

namespace cloudedge::cube {
namespace {

using Verdict = Handled::Verdict;

std::string_view text(wire::Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

int http_status(std::int32_t code) {
  switch (code) {
    case wire::kNoService:
    case wire::kNoMethod:
    case wire::kUnknownVersion: return 404;
    case wire::kBadRequest: return 400;
    case wire::kForbidden: return 403;
    case wire::kOvercrowded:
    case wire::kStopping:
    case wire::kOverLimit: return 503;
    default: return 500;
  }
}

// The full name of a service: clients write it with or without the package.
std::string_view full_name(std::string_view service) {
  for (const std::string_view known : {wire::kDictService, wire::kControlService}) {
    if (service == known || service == known.substr(known.rfind('.') + 1)) return known;
  }
  return {};
}

constexpr std::size_t kMaxControl = 64 * 1024;  // of a control command
constexpr std::size_t kKeep = 1024 * 1024;      // memory of one message that is kept for the next

// brpc's form: [ip:port][E1002]text.
std::string error_text(const Connection& connection, const Failure& failure) {
  std::string out(1, '[');
  out.append(local_address(connection.fd.get()).text()).append("][E").append(std::to_string(failure.code));
  out.append("]").append(failure.text, 0, wire::kMaxErrorText);
  return failure.text.size() > wire::kMaxErrorText ? out.append("...") : out;
}

// A name out of a request, short enough to repeat in its answer.
std::string shortened(std::string_view name) { return std::string(name.substr(0, wire::kMaxErrorText)); }

}  // namespace

Handled Service::handle(Connection& connection, wire::Bytes input, Buffer& out) {
  wire::Header header;
  switch (wire::parse_header(input, shared_.limits.max_request(), header)) {
    case wire::Head::foreign: return http(connection, input, out);
    // While it may still become either protocol, every byte may decide.
    case wire::Head::incomplete: return {Verdict::more, input.size() < 4 ? input.size() + 1 : wire::kHeaderSize};
    case wire::Head::broken: return {Verdict::drop};
    case wire::Head::frame: break;
  }
  const std::size_t size = wire::kHeaderSize + header.body;
  if (input.size() < size) return {Verdict::more, size};
  return frame(connection, input.first(size), header, out);
}

Handled Service::frame(Connection& connection, wire::Bytes frame, const wire::Header& header, Buffer& out) {
  wire::Meta meta;
  if (!wire::parse_meta(frame.subspan(wire::kHeaderSize, header.meta), meta) || !meta.is_request) {
    return {Verdict::drop};  // without a meta an answer has no request to refer to
  }
  const Handled answered = {Verdict::taken, frame.size()};
  const wire::Bytes rest = frame.subspan(wire::kHeaderSize + header.meta);
  const std::string_view service = full_name(meta.service);
  Failure failure;
  if (shared_.refusing.load(std::memory_order_relaxed)) {
    failure = {wire::kStopping, "the server is stopping"};
  } else if (service.empty() && meta.service.find('.') == meta.service.npos) {
    failure = {wire::kNoService, "Fail to find service=" + shortened(meta.service)};
  } else if (meta.attachment_size < 0 || static_cast<std::size_t>(meta.attachment_size) > rest.size()) {
    failure = {wire::kBadRequest, "attachment_size does not fit into the body"};
  } else if (service == wire::kDictService && meta.method == "seek") {
    failure = seeker_.frame(rest.first(rest.size() - static_cast<std::size_t>(meta.attachment_size)), meta, out);
  } else if (service == wire::kControlService && meta.method == "cmd") {
    if (may_control(connection)) {
      const auto reply = [id = meta.correlation_id](Buffer& to, const ControlAnswer& answer) {
        const bool tried = answer.reason.empty();
        std::string why = answer.reason;
        if (tried && answer.status != 200) why = "the command was refused: " + std::to_string(answer.status);
        const auto code = why.empty() ? wire::kOk : tried ? wire::kInternal : wire::kForbidden;
        wire::write_reply(to, id, code, why, why.empty() ? answer.body : "");
      };
      return control(connection, rest.last(static_cast<std::size_t>(meta.attachment_size)), answered, out, reply);
    }
    failure = {wire::kForbidden, "control commands are taken from loopback only"};
  } else {
    const std::string_view named = service.empty() ? meta.service : service;
    failure = {wire::kNoMethod, "Fail to find method=" + shortened(named) + "/" + shortened(meta.method)};
  }
  if (failure) wire::write_reply(out, meta.correlation_id, failure.code, error_text(connection, failure));
  return answered;
}

Handled Service::http(Connection& connection, wire::Bytes input, Buffer& out) {
  const Handled handled = answer_http(connection, input, out);
  if (chunked_.capacity() > kKeep) chunked_.release();
  if (body_.capacity() > kKeep) body_.release();
  return handled;
}

Handled Service::answer_http(Connection& connection, wire::Bytes input, Buffer& out) {
  http::Request request;
  const http::Parse parse =
      http::parse(input, {.body = shared_.limits.max_request()}, connection.progress, request, chunked_);
  if (parse.send_continue) out.append("HTTP/1.1 100 Continue\r\n\r\n");
  if (parse.status == http::Parse::Status::incomplete) return {Verdict::more, parse.size};
  if (parse.status == http::Parse::Status::refused) {
    counters_.add(kBroken, 1);
    request.keep_alive = false;
    http::write_response(out, request, {.status = parse.code, .body = parse.reason});
    return {Verdict::close, input.size()};
  }
  if (shared_.draining.load(std::memory_order_relaxed)) request.keep_alive = false;
  const Handled answered = {request.keep_alive ? Verdict::taken : Verdict::close, parse.size};

  const std::string_view path = request.path.substr(request.path.starts_with('/') ? 1 : 0);
  const std::size_t slash = std::min(path.find('/'), path.size());
  const std::string_view service = full_name(path.substr(0, slash));
  const std::string_view method = path.substr(std::min(slash + 1, path.size()));
  if (service == wire::kControlService && method == "cmd" && may_control(connection)) {
    return http_control(connection, request, answered, out);
  }
  http::Response response;
  Failure failure;
  if (service == wire::kControlService && method == "cmd") {
    failure = {wire::kForbidden, "control commands are taken from loopback only"};
  } else if (service != wire::kDictService || method != "seek") {
    failure = page(request, response);
  } else if (shared_.refusing.load(std::memory_order_relaxed)) {
    failure = {wire::kStopping, "the server is stopping"};
  } else {
    body_.clear();
    failure = seeker_.http(request, body_);
    response.content_type = request.content_type.empty() ? "application/json" : request.content_type;
    response.body = text(body_.bytes());
  }
  if (failure) {
    const std::string why = error_text(connection, failure);
    http::write_response(out, request, {.status = http_status(failure.code), .error_code = failure.code, .body = why});
  } else {
    http::write_response(out, request, response);
  }
  return answered;
}

Failure Service::page(const http::Request& request, http::Response& response) {
  if (request.path == "/health") {
    const bool leaving = shared_.draining.load(std::memory_order_relaxed);
    if (leaving) return {wire::kStopping, "the server is stopping"};
    response.body = "OK";
  } else if (request.path == "/version") {
    response.body = "Cube Service";
  } else if (request.path == "/vars") {
    body_.clear();
    body_.append(shared_.vars_page());
    response.body = text(body_.bytes());
  } else {
    return {wire::kNoMethod, "Fail to find method on `" + std::string(request.path) + "'"};
  }
  return {};
}

Handled Service::http_control(Connection& connection, const http::Request& request, const Handled& answered,
                              Buffer& out) {
  http::Request like;  // the fields of the request that its answer needs and that outlive it
  like.keep_alive = request.keep_alive;
  like.version_1_0 = request.version_1_0;
  return control(connection, request.body, answered, out, [like](Buffer& to, const ControlAnswer& answer) {
    http::write_response(
        to, like, {.status = answer.status, .content_type = "application/json", .body = answer.body});
  });
}

template <class Reply>
Handled Service::control(const Connection& connection, wire::Bytes command, const Handled& answered, Buffer& out,
                         Reply reply) {
  const bool then_close = answered.verdict == Verdict::close;
  const auto later = [&loop = loop_, id = connection.id, reply, then_close](const ControlAnswer& answer) {
    Buffer bytes;
    reply(bytes, answer);
    loop.answer(id, std::string(text(bytes.bytes())), then_close);
  };
  const std::optional<ControlAnswer> now =
      command.size() > kMaxControl ? ControlAnswer{400, ""} : shared_.control.run(text(command), later);
  if (!now) return {Verdict::wait, answered.size};
  reply(out, *now);
  return answered;
}

bool Service::may_control(const Connection& connection) const {
  return connection.from_loopback || shared_.remote_control;
}

}  // namespace cloudedge::cube
