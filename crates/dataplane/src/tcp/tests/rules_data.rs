//! Data in both directions, acknowledgements and windows (RFC 9293 §3.8).

use super::script::run;

/// The handshake in front of each script.
fn open(rest: &str) {
    run(&format!(
        "
        < S 0:0(0) win 20000 <mss 1000>
        > S. 0:0(0) ack 1
        < . 1:1(0) ack 1 win 20000
        event Knock
        {rest}"
    ));
}

#[test]
fn an_acknowledgement_waits_for_40_ms() {
    open(
        "
        < P. 1:101(100) ack 1
        event Received 100
        > nothing
        +39
        > nothing
        +2
        > . 1:1(0) ack 101
    ",
    );
}

#[test]
fn an_answer_carries_the_acknowledgement() {
    open(
        "
        < P. 1:65(64) ack 1
        write 64
        > . 1:65(64) ack 65       # the turn of `<` has not acknowledged: the answer does
        +100
        > nothing
    ",
    );
}

#[test]
fn every_second_full_segment_is_acknowledged_at_once() {
    open(
        "
        < . 1:1461(1460) ack 1
        > nothing
        < . 1461:2921(1460) ack 1
        > . 1:1(0) ack 2921
    ",
    );
}

#[test]
fn data_out_of_order_is_kept_and_a_filled_hole_is_acknowledged_at_once() {
    open(
        "
        < . 1001:2001(1000) ack 1
        > . 1:1(0) ack 1
        event none
        < . 2001:3001(1000) ack 1
        > . 1:1(0) ack 1
        < . 1:1001(1000) ack 1
        event Received 1000
        event Received 1000
        event Received 1000
        > . 1:1(0) ack 3001
    ",
    );
}

#[test]
fn data_that_overlaps_is_taken_once() {
    open(
        "
        < . 1:101(100) ack 1
        event Received 100
        < . 51:151(100) ack 1
        event Received 50
        < . 1:101(100) ack 1
        event none
        > . 1:1(0) ack 151        # RFC 9293 §3.10.7.4: what is old is acknowledged again
    ",
    );
}

#[test]
fn the_window_closes_when_the_application_does_not_read() {
    open(
        "
        < . 1:10001(10000) ack 1
        event Received 10000
        +41
        > . 1:1(0) ack 10001 win 10000
        < . 10001:20001(10000) ack 1
        event Received 10000
        +41
        > . 1:1(0) ack 20001 win 0
        < . 20001:20002(1) ack 1   # a probe
        event none
        > . 1:1(0) ack 20001 win 0
        read 100
        > nothing                  # less than a segment: no silly window
        read 9900
        > . 1:1(0) ack 20001 win 10000
    ",
    );
}

#[test]
fn a_window_that_is_still_large_is_not_announced() {
    open(
        "
        < P. 1:101(100) ack 1
        write 10
        > . 1:11(10) ack 101
        read 100
        > nothing
    ",
    );
}

#[test]
fn data_beyond_the_window_is_cut() {
    open(
        "
        < . 1:25001(25000) ack 1
        event Received 20000
    ",
    );
}

#[test]
fn a_closed_window_is_probed_with_doubled_waits_and_for_ever() {
    open(
        "
        < . 1:1(0) ack 1 win 0
        write 100
        > nothing
        +201
        > . 0:0(0) ack 1
        < . 1:1(0) ack 1 win 0
        +398
        > nothing
        +3
        > . 0:0(0) ack 1
        < . 1:1(0) ack 1 win 0
        +801
        > . 0:0(0) ack 1
        < . 1:1(0) ack 1 win 500
        > . 1:101(100) ack 1
    ",
    );
}

#[test]
fn a_closed_window_without_an_answer_ends_the_connection() {
    run("
        set retries 2
        < S 0:0(0) win 20000 <mss 1000>
        > S. 0:0(0) ack 1
        < . 1:1(0) ack 1 win 0
        event Knock
        write 100
        +201
        > . 0:0(0) ack 1
        +401
        > . 0:0(0) ack 1
        +801
        event Dead TimedOut
    ");
}

#[test]
fn a_small_window_does_not_make_small_segments() {
    open(
        "
        < . 1:1(0) ack 1 win 20000
        write 3000
        > . 1:1001(1000)
        > . 1001:2001(1000)
        > . 2001:3001(1000)
        < . 1:1(0) ack 3001 win 300
        write 3000
        > nothing                  # the sender's half of RFC 9293 §3.8.6.2.1
        < . 1:1(0) ack 3001 win 1300
        > . 3001:4001(1000)
        > nothing
    ",
    );
}

#[test]
fn what_a_small_window_takes_goes_out_after_a_timeout() {
    run("
        set retries 3
        < S 0:0(0) win 20000 <mss 1000>
        > S. 0:0(0) ack 1
        < . 1:1(0) ack 1 win 20000
        event Knock
        < . 1:1(0) ack 1 win 300
        write 1000
        > nothing
        +199
        > nothing
        +2
        > . 1:301(300)
        < . 1:1(0) ack 301 win 300
        > nothing
        +1000
        > . 301:601(300)
        +20000
        event Dead TimedOut
    ");
}

#[test]
fn a_segment_older_than_the_last_does_not_change_the_window() {
    open(
        "
        < P. 1:101(100) ack 1 win 20000
        < . 1:1(0) ack 1 win 100   # older: its number is before the last one's
        > . 1:1(0) ack 101
        write 1000
        > . 1:1001(1000) ack 101
    ",
    );
}

#[test]
fn the_push_flag_ends_what_is_queued() {
    open(
        "
        write 1500
        > . 1:1001(1000)
        > P. 1001:1501(500)
    ",
    );
}

#[test]
fn a_peer_without_an_answer_is_probed_and_then_dead() {
    run("
        set keep-alive 1000
        < S 0:0(0) win 20000 <mss 1000>
        > S. 0:0(0) ack 1
        < . 1:1(0) ack 1
        event Knock
        +999
        > nothing
        +2
        > . 0:0(0) ack 1
        < . 1:1(0) ack 1          # it lives
        +999
        > nothing
        +2
        > . 0:0(0) ack 1
        +101
        > . 0:0(0) ack 1
        +101
        event Dead TimedOut
        > R. 1:1(0)
    ");
}

#[test]
fn a_keep_alive_of_the_peer_is_answered() {
    open(
        "
        < . 0:0(0) ack 1
        > . 1:1(0) ack 1
    ",
    );
}

#[test]
fn memory_for_data_out_of_order_is_bounded() {
    run("
        set memory 1500
        < S 0:0(0) win 20000 <mss 1000>
        > S. 0:0(0) ack 1
        < . 1:1(0) ack 1
        event Knock
        < . 1001:2001(1000) ack 1
        > . 1:1(0) ack 1
        < . 2001:3001(1000) ack 1
        > . 1:1(0) ack 1
        < . 1:1001(1000) ack 1
        event Received 1000
        event Received 1000
        event none
        > . 1:1(0) ack 2001
    ");
}
