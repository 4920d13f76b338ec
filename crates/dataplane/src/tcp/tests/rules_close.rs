//! Closing (RFC 9293 §3.6), from either side and in every order.

use super::script::run;

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
fn the_peer_closes_first() {
    open(
        "
        < F. 1:1(0) ack 1
        event Finished
        > . 1:1(0) ack 2
        write 10
        > . 1:11(10) ack 2        # half closed: this side may still send
        close
        > F. 11:11(0) ack 2
        < . 2:2(0) ack 12
        event Dead Closed
        < . 2:2(0) ack 12
        > R 12:12(0)              # nobody is here any more
    ",
    );
}

#[test]
fn this_side_closes_first_and_waits() {
    open(
        "
        write 10
        > . 1:11(10)
        close
        > F. 11:11(0) ack 1
        < . 1:1(0) ack 12
        < F. 1:1(0) ack 12
        event Finished
        event Dead Closed
        > . 12:12(0) ack 2
        +1000
        < F. 1:1(0) ack 12        # the acknowledgement was lost: TIME-WAIT answers
        > . 12:12(0) ack 2
        +60001
        < F. 1:1(0) ack 12
        > R 12:12(0)
    ",
    );
}

#[test]
fn both_close_at_once() {
    open(
        "
        finish
        > F. 1:1(0) ack 1
        < F. 1:1(0) ack 1
        event Finished
        > . 2:2(0) ack 2
        < . 2:2(0) ack 2
        event Dead Closed
    ",
    );
}

#[test]
fn the_fin_goes_out_with_the_last_data() {
    open(
        "
        < . 1:1(0) ack 1 win 0
        write 10
        close
        > nothing
        < . 1:1(0) ack 1 win 1000
        > F. 1:11(10) ack 1
    ",
    );
}

#[test]
fn a_half_closed_connection_still_receives() {
    open(
        "
        finish
        > F. 1:1(0) ack 1
        < P. 1:101(100) ack 2
        event Received 100
        +41
        > . 2:2(0) ack 101
    ",
    );
}

#[test]
fn data_for_a_closed_application_is_refused() {
    open(
        "
        close
        > F. 1:1(0) ack 1
        < P. 1:101(100) ack 2
        > R. 2:2(0)
        event Dead Aborted
    ",
    );
}

#[test]
fn a_fin_is_sent_again() {
    open(
        "
        close
        > F. 1:1(0) ack 1
        +201
        > F. 1:1(0) ack 1
        < . 1:1(0) ack 2
        +5000
        > nothing
    ",
    );
}

#[test]
fn a_fin_out_of_order_waits_for_the_data() {
    open(
        "
        < F. 101:101(0) ack 1
        > . 1:1(0) ack 1
        event none
        < . 1:101(100) ack 1
        event Received 100
        event Finished
        > . 1:1(0) ack 102
    ",
    );
}

#[test]
fn a_peer_that_never_closes_is_given_up() {
    open(
        "
        close
        > F. 1:1(0) ack 1
        < . 1:1(0) ack 2
        +60001
        event Dead TimedOut
    ",
    );
}

#[test]
fn an_abort_sends_a_reset() {
    open(
        "
        abort
        > R. 1:1(0) ack 1
        event Dead Aborted
    ",
    );
}

#[test]
fn a_reset_for_a_neighbour_that_is_gone_ends_the_connection() {
    open(
        "
        write 100
        > . 1:101(100)
        +40000                    # its hardware address is in doubt, and nobody answers
        abort
        event none
        +900000
        event Dead Aborted
    ",
    );
}

#[test]
fn a_rejected_peer_sees_a_reset_and_the_application_nothing() {
    open(
        "
        reject
        > R. 1:1(0) ack 1
        event none
    ",
    );
}

#[test]
fn a_new_connection_may_follow_in_time_wait() {
    open(
        "
        close
        > F. 1:1(0) ack 1
        < F. 1:1(0) ack 2
        event Finished
        event Dead Closed
        > . 2:2(0) ack 2
        < S 5000:5000(0) win 1000 <mss 1000>
        > S. 0:0(0) ack 5001
    ",
    );
}

#[test]
fn time_wait_is_not_ended_by_a_reset() {
    open(
        "
        close
        > F. 1:1(0) ack 1
        < F. 1:1(0) ack 2
        event Finished
        event Dead Closed
        > . 2:2(0) ack 2
        < R 2:2(0)                # RFC 1337
        < F. 1:1(0) ack 2
        > . 2:2(0) ack 2
    ",
    );
}

#[test]
fn a_fin_that_first_goes_out_with_a_retransmission_is_acknowledged() {
    open(
        "
        write 10
        > P. 1:11(10) ack 1
        close
        > F. 11:11(0) ack 1
        < . 1:1(0) ack 12
        +1000
        > nothing
    ",
    );
    open(
        "
        write 2000
        > . 1:1001(1000) ack 1
        > . 1001:2001(1000) ack 1
        +201
        > . 1:1001(1000) ack 1
        finish
        > nothing                 # the window is one segment now
        < . 1:1(0) ack 1001
        > F. 1001:2001(1000) ack 1
        < . 1:1(0) ack 2002
        +5000
        > nothing
    ",
    );
}

#[test]
fn data_that_is_here_already_resets_no_closed_connection() {
    open(
        "
        < P. 1:101(100) ack 1
        event Received 100
        close
        > F. 1:1(0) ack 101
        < FP. 1:101(100) ack 2
        event Finished
        event Dead Closed
        > . 2:2(0) ack 102
    ",
    );
}

#[test]
fn an_acknowledgement_beyond_a_hole_is_not_answered() {
    open(
        "
        < . 101:101(0) ack 1
        > nothing
        finish
        > F. 1:1(0) ack 1
        < . 101:101(0) ack 2
        > nothing
    ",
    );
}

#[test]
fn a_reset_in_last_ack_is_no_error_once_all_data_has_arrived() {
    open(
        "
        < F. 1:1(0) ack 1
        event Finished
        > . 1:1(0) ack 2
        close
        > F. 1:1(0) ack 2
        < R 2:2(0)
        event Dead Closed
    ",
    );
    open(
        "
        < F. 1:1(0) ack 1
        event Finished
        > . 1:1(0) ack 2
        write 10
        > P. 1:11(10) ack 2
        close
        > F. 11:11(0) ack 2
        < R 2:2(0)
        event Dead Reset
    ",
    );
}
