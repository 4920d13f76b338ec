package slackline.tweets

import java.time.Instant

import scala.util.Random

/** What the service knows when it starts: tweets by id from 1, each user's feed newest first, and who follows whom. */
final case class DataSet(
  tweets: Vector[Tweet],
  feeds: Vector[Vector[Tweet]],
  follows: Vector[Vector[UserId]]
)

object DataSet {

  /** With the default 3000 users: 48 000 tweets, about 30 MB of heap. */
  val TweetsPerUser = 16

  /** Bounds of the number of users somebody follows. */
  private val Follows = 10 to 50

  private val Start = Instant.parse("2020-01-01T00:00:00Z")
  private val BetweenTweets_ms = 250L

  private val Words =
    ("the a we they you it is was will can not and or but so then when where while after before on in at to from with " +
      "without coffee train latency queue bridge river market morning night server kernel compiler garden music paper " +
      "window street orchestra runs waits sings breaks holds turns opens closes early late again never slowly").split(' ').toVector
  private val Topics =
    "weather trains jvm linux music football cooking election science cats gardening books cycling maps chess".split(' ').toVector

  /** Time is a function of the id: the same requests give the same answers, whenever they are sent. */
  def instantOf(id: TweetId): Instant = Start.plusMillis(id.value * BetweenTweets_ms)

  /** The same seed and number of users give the same data set, on every machine. */
  def generate(seed: Long, users: Int): DataSet = {
    val random = new Random(seed)
    val tweets = Vector.tabulate(users * TweetsPerUser) { index =>
      val id = TweetId(index + 1L)
      val text = sentence(random, users)
      // Every user writes once in each round, so that all feeds are full and reach equally far back.
      Tweet(id, UserId(index % users), instantOf(id), text, Entities.of(text))
    }
    val byAuthor = tweets.groupBy(_.author)
    val feeds = Vector.tabulate(users)(user => byAuthor(UserId(user)).sorted(Tweet.byTime.reverse))
    val follows = Vector.tabulate(users)(user => followed(random, UserId(user), users))
    DataSet(tweets, feeds, follows)
  }

  private def sentence(random: Random, users: Int): String = {
    val words = Vector.fill(random.between(6, 18))(Words(random.nextInt(Words.size)))
    val topics = Vector.fill(random.nextInt(3))("#" + Topics(skewed(random, Topics.size)))
    val mentions = Vector.fill(random.nextInt(2))(s"@${skewed(random, users)}")
    (words ++ topics ++ mentions).mkString(" ")
  }

  private def followed(random: Random, user: UserId, users: Int): Vector[UserId] =
    Vector
      .fill(random.between(Follows.start, Follows.end + 1))(UserId(skewed(random, users)))
      .distinct
      .filterNot(_ == user)

  /** Small numbers are popular: the square of a uniform variate, so that a tenth of the users gets a third of it. */
  private def skewed(random: Random, bound: Int): Int = {
    val uniform = random.nextDouble()
    (uniform * uniform * bound).toInt
  }
}
