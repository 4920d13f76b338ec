//! Blind attacks, old segments and floods (RFC 5961, 7323, 4987, 6528, 1337).

use super::script::run;

fn open(rest: &str) {
    run(&format!(
        "
        < S 0:0(0) win 60000 <mss 1000>
        > S. 0:0(0) ack 1
        < . 1:1(0) ack 1 win 60000
        event Knock
        {rest}"
    ));
}

fn open_with_timestamps(rest: &str) {
    run(&format!(
        "
        set timestamps on
        < S 0:0(0) win 60000 <mss 1000, TS 1000 ecr 0>
        > S. 0:0(0) ack 1 <TS 0 ecr 1000>
        < . 1:1(0) ack 1 win 60000 <TS 1001 ecr .>
        event Knock
        {rest}"
    ));
}

#[test]
fn a_reset_at_the_next_number_counts() {
    open(
        "
        < R 1:1(0)
        event Dead Reset
        > nothing
    ",
    );
}

#[test]
fn a_reset_elsewhere_in_the_window_is_challenged() {
    open(
        "
        < R 2:2(0)
        event none
        > . 1:1(0) ack 1
        < R 3:3(0)
        > nothing                 # RFC 5961 §7: not every time
        +501
        < R 3:3(0)
        > . 1:1(0) ack 1
        < R 1:1(0)                # an honest peer answers the challenge so
        event Dead Reset
    ",
    );
}

#[test]
fn a_reset_outside_of_the_window_is_dropped() {
    open(
        "
        < R 0:0(0)
        < R 20002:20002(0)
        event none
        > nothing
    ",
    );
}

#[test]
fn a_syn_in_a_connection_is_challenged() {
    open(
        "
        < S 5000:5000(0) win 100
        event none
        > . 1:1(0) ack 1
    ",
    );
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_is_challenged_and_its_data_dropped() {
    open(
        "
        < P. 1:11(10) ack 500
        event none
        > . 1:1(0) ack 1
    ",
    );
}

#[test]
fn an_acknowledgement_that_is_far_too_old_is_challenged_and_its_data_dropped() {
    open(
        "
        < P. 1:11(10) ack -100000
        event none
        > . 1:1(0) ack 1
    ",
    );
}

#[test]
fn a_reset_of_an_embryo_frees_it() {
    run("
        set backlog 1
        < S 0:0(0) win 1000
        > S. 0:0(0) ack 1
        < R 1:1(0)
        > nothing
        event none
        < S 0:0(0) win 1000
        > S. 0:0(0) ack 1
    ");
}

#[test]
fn old_timestamps_are_rejected() {
    open_with_timestamps(
        "
        < P. 1:11(10) ack 1 <TS 2000 ecr .>
        event Received 10
        < P. 11:21(10) ack 1 <TS 1999 ecr .>
        event none
        > . 1:1(0) ack 11 <TS 0 ecr 2000>
    ",
    );
}

#[test]
fn a_timestamp_may_wrap_and_is_old_for_24_days_only() {
    open_with_timestamps(
        "
        < P. 1:11(10) ack 1 <TS 2000 ecr .>
        event Received 10
        < P. 11:21(10) ack 1 <TS 2147485000 ecr .>
        event Received 10
    ",
    );
}

#[test]
fn an_old_timestamp_counts_after_24_days_of_silence() {
    open_with_timestamps(
        "
        < P. 1:11(10) ack 1 <TS 2000 ecr .>
        event Received 10
        +41
        > . 1:1(0) ack 11 <TS 0 ecr 2000>
        +2073480000               # two minutes less than 24 days
        < P. 11:21(10) ack 1 <TS 1999 ecr .>
        event none
        arp
        > . 1:1(0) ack 11 <TS 0 ecr 2000>
        +180000
        < P. 11:21(10) ack 1 <TS 1999 ecr .>
        event Received 10
    ",
    );
}

#[test]
fn a_segment_without_the_agreed_timestamps_is_dropped() {
    open_with_timestamps(
        "
        < P. 1:11(10) ack 1
        event none
        > nothing
    ",
    );
}

#[test]
fn a_reset_needs_no_timestamp() {
    open_with_timestamps(
        "
        < R 1:1(0)
        event Dead Reset
    ",
    );
}

#[test]
fn the_echo_is_of_the_segment_that_advanced_the_window() {
    open_with_timestamps(
        "
        < P. 1:11(10) ack 1 <TS 1100 ecr .>
        < P. 11:21(10) ack 1 <TS 1200 ecr .>
        +41
        > . 1:1(0) ack 21 <TS 0 ecr 1100>
    ",
    );
}

#[test]
fn a_full_backlog_answers_with_cookies_that_open_connections() {
    run("
        set backlog 0
        < S 0:0(0) win 20000 <mss 1460>
        > S. 0:0(0) ack 1 <mss 1460>
        +2000
        > nothing                 # nothing is remembered, so nothing is sent again
        < P. 1:11(10) ack 1 win 20000
        event Knock
        event Received 10
        write 2000
        > . 1:1461(1460) ack 11
        > . 1461:2001(540) ack 11
    ");
}

#[test]
fn a_cookie_keeps_the_options_in_the_timestamp() {
    run("
        set backlog 0
        set timestamps on
        set sack on
        set scaling on
        < S 0:0(0) win 20000 <mss 1460, sackOK, wscale 3, TS 77 ecr 0>
        > S. 0:0(0) ack 1 <mss 1460, sackOK, wscale 0, TS 0 ecr 77>
        < . 1:1(0) ack 1 win 250 <TS 78 ecr .>
        event Knock
        write 4000                # 250 scaled by 3 are 2,000 bytes
        > . 1:1449(1448) ack 1 <TS 0 ecr 78>
        > nothing
        < . 1001:1101(100) ack 1449 win 250 <TS 79 ecr .>
        > . 1449:2897(1448) ack 1 <TS 0 ecr 78>
        > . 2897:2897(0) ack 1 <TS 0 ecr 78, sack 1001:1101>
    ");
}

#[test]
fn a_guessed_cookie_is_refused() {
    run("
        set backlog 0
        < S 0:0(0) win 20000 <mss 1460>
        > S. 0:0(0) ack 1
        < . 1:1(0) ack 2 win 20000
        > R 2:2(0)
        event none
    ");
}

#[test]
fn a_cookie_is_refused_after_two_minutes() {
    run("
        set backlog 0
        < S 0:0(0) win 20000 <mss 1460>
        > S. 0:0(0) ack 1
        +128001
        < . 1:1(0) ack 1 win 20000
        > R 1:1(0)
        event none
    ");
}
