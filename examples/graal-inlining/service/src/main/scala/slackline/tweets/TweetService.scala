package slackline.tweets

import com.twitter.finagle.http.path.{/, Path, Root}
import com.twitter.finagle.http.{MediaType, Method, Request, Response, Status}
import com.twitter.finagle.{Service, SimpleFilter}
import com.twitter.util.Future
import com.twitter.util.logging.Logger

import scala.util.control.NonFatal

import slackline.tweets.Json.Encoded

/** The service's HTTP face: `POST /tweets`, `GET /tweets/{id}`, `GET /timeline/{user}?n=20`, `GET /health`. */
final class TweetService(store: TweetStore) extends Service[Request, Response] {
  import TweetService._

  def apply(request: Request): Future[Response] =
    Future.value((request.method, Path(request.path)) match {
      case (Method.Get, Root / "tweets" / Number(id)) =>
        store.find(TweetId(id)).fold(problem(Status.NotFound, s"no tweet $id"))(json(Status.Ok, _))

      case (Method.Get, Root / "timeline" / Number(user)) =>
        pageSize(request)
          .flatMap(limit => known(user).flatMap(store.timeline(_, limit)).toRight(noUser(user)))
          .fold(identity, json(Status.Ok, _))

      case (Method.Post, Root / "tweets") =>
        val added = for {
          author <- parameter(request, "user").flatMap(_.toLongOption.toRight(badRequest("user is not a number")))
          text <- parameter(request, "text")
          _ <- Either.cond(text.length <= Tweet.MaxLength, (), badRequest(s"text is longer than ${Tweet.MaxLength}"))
          tweet <- known(author).flatMap(store.add(_, text)).toRight(noUser(author))
        } yield tweet
        added.fold(identity, json(Status.Created, _))

      case (Method.Get, Root / "health") => json(Status.Ok, Json.obj("users" -> store.users.toJson))

      case (method, path) => problem(Status.NotFound, s"nothing at $method $path")
    })

  private def known(user: Long): Option[UserId] =
    Option.when(user >= 0 && user < store.users)(UserId(user.toInt))
}

object TweetService {

  /** Tweets on a page if the request does not say, and at most. */
  val DefaultPage = 20
  val MaxPage = 100

  private object Number {
    def unapply(text: String): Option[Long] = text.toLongOption
  }

  private def pageSize(request: Request): Either[Response, Int] =
    request.params.get("n").fold[Either[Response, Int]](Right(DefaultPage)) { text =>
      text.toIntOption
        .filter(limit => limit >= 1 && limit <= MaxPage)
        .toRight(badRequest(s"n must be from 1 to $MaxPage"))
    }

  private def parameter(request: Request, name: String): Either[Response, String] =
    request.params.get(name).filter(_.nonEmpty).toRight(badRequest(s"parameter $name is missing"))

  private def noUser(user: Long): Response = problem(Status.NotFound, s"no user $user")

  private def badRequest(reason: String): Response = problem(Status.BadRequest, reason)

  private def problem(status: Status, reason: String): Response =
    json(status, Json.obj("error" -> reason.toJson))

  private def json[A: Json.Encoder](status: Status, value: A): Response = {
    val response = Response(status)
    response.mediaType = MediaType.Json
    response.contentString = value.toJson.render
    response
  }

  /** Turns what a service throws into an answer, and tells the log. */
  object Failures extends SimpleFilter[Request, Response] {
    private val log = Logger(getClass)

    def apply(request: Request, service: Service[Request, Response]): Future[Response] =
      Future(service(request)).flatten.rescue { case NonFatal(failure) =>
        log.error(s"${request.method} ${request.uri} failed", failure)
        Future.value(problem(Status.InternalServerError, "internal error"))
      }
  }
}
