"""Every call of libnbd that reaches a server, against the exports `ram`, `file` and `fixed` (read only)."""

import errno
import os

import nbd

ROOT = os.environ["SERVER_URI"]
SIZE = 64 << 20
FLAGS = {
    "can_flush": True,
    "can_fua": True,
    "can_cache": True,
    "can_multi_conn": True,
    "can_trim": True,
    "can_zero": True,
    "can_fast_zero": True,
    "is_read_only": False,
    "is_rotational": False,
}


def handle(**settings):
    new = nbd.NBD()
    for name, value in settings.items():
        getattr(new, "set_" + name)(value)
    return new


def fails(call, *expected):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum in expected, (error.errnum, expected, str(error))
        return
    raise AssertionError("the call did not fail")


def negotiation():
    h = handle(opt_mode=True, full_info=True)
    h.add_meta_context("base:allocation")
    h.connect_uri(ROOT)
    assert h.get_protocol() == "newstyle-fixed" and h.get_structured_replies_negotiated()
    names = []
    assert h.opt_list(lambda name, description: names.append((name, description)) and 0) == 3
    assert ("ram", "in memory") in names and len(names) == 3, names
    contexts = []
    h.set_export_name("ram")
    assert h.opt_list_meta_context(contexts.append) == 1 and contexts == ["base:allocation"]
    for query, found in [("base:", 1), ("base:allocation", 1), ("qemu:dirty-bitmap:x", 0)]:
        h.clear_meta_contexts()
        h.add_meta_context(query)
        assert h.opt_list_meta_context(lambda name: 0) == found, query
    h.clear_meta_contexts()
    h.add_meta_context("base:allocation")
    h.opt_info()
    assert h.get_size() == SIZE and h.get_canonical_export_name() == "ram"
    assert h.get_export_description() == "in memory"
    assert h.get_block_size(nbd.SIZE_MINIMUM) == 1
    assert h.get_block_size(nbd.SIZE_MAXIMUM) == 32 << 20
    assert h.get_block_size(nbd.SIZE_PREFERRED) >= 4096
    # An export that is not there is refused, and another one may be asked for.
    h.set_export_name("absent")
    fails(h.opt_info, errno.ENOENT)
    fails(h.opt_go, errno.ENOENT)
    h.set_export_name("x" * 4096)
    fails(h.opt_info, errno.ENOENT)
    h.set_export_name("file")
    h.opt_go()
    assert h.can_meta_context("base:allocation")
    h.shutdown()
    # No export: the client leaves.
    h = handle(opt_mode=True)
    h.connect_uri(ROOT)
    h.opt_abort()


def commands(export, structured):
    h = handle(request_structured_replies=structured)
    if structured:
        h.add_meta_context("base:allocation")
    h.connect_uri(ROOT + export)
    assert h.get_structured_replies_negotiated() == structured
    assert h.get_size() == SIZE and h.can_df() == structured
    for name, expected in FLAGS.items():
        assert getattr(h, name)() == expected, name
    data = os.urandom(70000)
    for offset, flags in [(0, 0), (4096, nbd.CMD_FLAG_FUA), (SIZE - len(data), 0), (12345, 0)]:
        h.pwrite(data, offset, flags)
        assert h.pread(len(data), offset) == data
    h.flush()
    h.cache(1 << 20, 0)
    # The largest request.
    whole = os.urandom(1 << 20) * 32
    h.pwrite(whole, 1 << 20)
    assert h.pread(32 << 20, 1 << 20) == whole
    for flags in [
        0,
        nbd.CMD_FLAG_FUA,
        nbd.CMD_FLAG_NO_HOLE,
        nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA,
    ]:
        h.pwrite(b"\1" * 300000, 1 << 20)
        h.zero(200000, (1 << 20) + 5, flags)
        read = h.pread(200002, (1 << 20) + 4)
        assert read[0] == 1 and read[-1] == 1 and not any(read[1:-1])
    try:
        h.zero(65536, 1 << 20, nbd.CMD_FLAG_FAST_ZERO)
    except nbd.Error as error:
        assert error.errnum == errno.EOPNOTSUPP
    h.trim(1 << 20, 1 << 20)
    h.trim(1 << 20, 1 << 20, nbd.CMD_FLAG_FUA)
    h.flush()
    if structured:
        chunks(h)
        extents(h)
    parallel(h)
    wrong(h)
    h.shutdown()


def chunks(h):
    seen = []

    def chunk(data, offset, status, error):
        seen.append((len(data), offset, status))
        return 0

    h.pread_structured(200000, 4096, chunk)
    assert sum(length for length, _, _ in seen) == 200000
    seen.clear()
    h.pread_structured(200000, 4096, chunk, nbd.CMD_FLAG_DF)
    assert len(seen) == 1


def extents(h):
    h.zero(SIZE, 0)
    h.pwrite(b"x" * 65536, 1 << 20)
    h.flush()
    entries = []

    def extent(context, offset, found, error):
        assert context == "base:allocation"
        entries.extend(zip(found[::2], found[1::2]))
        return 0

    at = 0
    while at < SIZE:
        entries.clear()
        h.block_status(min(SIZE - at, 1 << 30), at, extent)
        assert entries and all(length > 0 for length, _ in entries)
        at += sum(length for length, _ in entries)
    entries.clear()
    h.block_status(SIZE, 0, extent, nbd.CMD_FLAG_REQ_ONE)
    assert len(entries) == 1 and entries[0][0] <= 1 << 20
    entries.clear()
    h.block_status(65536, 1 << 20, extent)
    assert entries[0] == (65536, 0), entries


def parallel(h):
    """Commands under way at once, answered in any order."""
    written = [nbd.Buffer.from_bytearray(bytearray([at]) * 4096) for at in range(200)]
    cookies = {h.aio_pwrite(buffer, 4096 * at) for at, buffer in enumerate(written)}
    finish(h, cookies)
    buffers = [nbd.Buffer(4096) for _ in written]
    finish(h, {h.aio_pread(buffer, 4096 * at) for at, buffer in enumerate(buffers)})
    for at, buffer in enumerate(buffers):
        assert buffer.to_bytearray() == bytearray([at]) * 4096, at


def finish(h, cookies):
    while cookies:
        done = {cookie for cookie in cookies if h.aio_command_completed(cookie)}
        cookies -= done
        if cookies:
            h.poll(-1)


def wrong(h):
    """What libnbd would not send by itself is answered, and the connection stays."""
    h.set_strict_mode(0)
    before = h.pread(4096, 0)
    fails(lambda: h.pread(1, SIZE), errno.EINVAL)
    fails(lambda: h.pread(4096, SIZE - 1), errno.EINVAL)
    fails(lambda: h.pwrite(b"x" * 4096, SIZE - 1), errno.ENOSPC)
    fails(lambda: h.zero(4096, SIZE - 1), errno.ENOSPC)
    fails(lambda: h.trim(4096, SIZE - 1), errno.EINVAL)
    fails(lambda: h.cache(4096, SIZE - 1), errno.EINVAL)
    fails(lambda: h.pread(4096, 1 << 62), errno.EINVAL)
    fails(lambda: h.pread((32 << 20) + 1, 0), errno.EINVAL, errno.ERANGE)
    fails(lambda: h.flush(1 << 12), errno.EINVAL)
    fails(lambda: h.pwrite(b"x", 0, nbd.CMD_FLAG_DF), errno.EINVAL)
    fails(lambda: h.trim(4096, 0, 1 << 9), errno.EINVAL)
    assert h.pread(4096, 0) == before


def read_only():
    h = nbd.NBD()
    h.connect_uri(ROOT + "fixed")
    assert h.is_read_only() and not h.can_trim() and not h.can_zero()
    h.set_strict_mode(0)
    for call in [
        lambda: h.pwrite(b"x", 0),
        lambda: h.trim(4096, 0),
        lambda: h.zero(4096, 0),
    ]:
        fails(call, errno.EPERM)
    h.pread(4096, 0)
    h.shutdown()


def coherent(export):
    """A flush on one connection covers what was answered on another one."""
    first, second = nbd.NBD(), nbd.NBD()
    first.connect_uri(ROOT + export)
    second.connect_uri(ROOT + export)
    first.pwrite(b"seen", 8192)
    assert second.pread(4, 8192) == b"seen"
    second.flush()
    # One leaves in the middle of a large answer, and the other does not notice.
    first.aio_pread(nbd.Buffer(32 << 20), 0)
    del first
    assert second.pread(4, 8192) == b"seen"


negotiation()
for export in ["ram", "file"]:
    for structured in [True, False]:
        commands(export, structured)
    coherent(export)
read_only()
print("libnbd", nbd.NBD().get_version(), "got what it asked for")
