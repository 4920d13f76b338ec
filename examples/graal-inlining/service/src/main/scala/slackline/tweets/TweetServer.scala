package slackline.tweets

import java.net.{BindException, InetAddress, InetSocketAddress}

import com.twitter.app.App
import com.twitter.finagle.Http
import com.twitter.util.Await

/** Starts the service on the loopback address. It listens only once its data set is in memory, so an open port means
  * ready.
  */
object TweetServer extends App {
  private val port = flag("port", 8080, "TCP port on the loopback address")
  private val seed = flag("seed", 1L, "seed of the data set")
  private val users = flag("users", 3000, "users in the data set, at least 100")

  // More users than fit into the fixed heap of the example's launcher make no experiment.
  private val UsersAllowed = 100 to 10000

  def main(): Unit = {
    if (!UsersAllowed.contains(users()))
      exitOnError(s"-users=${users()}: must be from ${UsersAllowed.start} to ${UsersAllowed.end}")
    val store = new TweetStore(DataSet.generate(seed(), users()))
    val address = new InetSocketAddress(InetAddress.getLoopbackAddress, port())
    val server =
      try Http.server.withLabel("tweets").serve(address, TweetService.Failures.andThen(new TweetService(store)))
      catch {
        case failure: BindException =>
          exitOnError(s"${failure.getMessage}: stop what holds the port, or choose another one")
          throw failure
      }
    onExit(Await.result(server.close()))
    Await.ready(server)
    ()
  }
}
