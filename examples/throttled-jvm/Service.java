import com.sun.net.httpserver.HttpServer;
import java.io.ByteArrayOutputStream;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Random;
import java.util.concurrent.Executors;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.zip.GZIPOutputStream;

/**
 * A small JSON service: each request renders a page of records and compresses it (about 2 ms of CPU time and half a megabyte of
 * garbage). A second pool rebuilds a table about once a second, all its threads at once, as caches are refreshed.
 *
 *     java Service.java PORT WORKERS REFRESHERS
 */
public class Service {
    private static volatile byte[][] table = new byte[0][];

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[0]);
        int workers = Integer.parseInt(arguments[1]);
        int refreshers = Integer.parseInt(arguments[2]);
        var refresh = Executors.newScheduledThreadPool(refreshers, named("refresh"));
        for (int part = 0; part < PARTS; part++) {
            int number = part;
            refresh.scheduleAtFixedRate(() -> refresh(number), REFRESH_MS, REFRESH_MS, TimeUnit.MILLISECONDS);
        }
        var server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 1024);
        server.createContext("/", exchange -> {
            byte[] page = compressed(page(exchange.getRequestURI().getPath().hashCode(), 40));
            exchange.getResponseHeaders().set("Content-Encoding", "gzip");
            exchange.sendResponseHeaders(200, page.length);
            try (var body = exchange.getResponseBody()) {
                body.write(page);
            }
        });
        server.setExecutor(Executors.newFixedThreadPool(workers, named("worker")));
        server.start();
    }

    /**
     * No multiple of the 100 ms after which a quota is filled up again: with 1,000 ms, each start of the service would keep its own
     * distance between the two, and so its own length of the stalls, for as long as it runs.
     */
    private static final int REFRESH_MS = 1030;

    /** The table has as many parts, however many threads rebuild it. */
    private static final int PARTS = 16;

    private static void refresh(int part) {
        byte[][] next = new byte[PARTS][];
        next[part] = compressed(page(part, 240));
        table = next;
    }

    private static byte[] page(int seed, int records) {
        var random = new Random(seed);
        var text = new StringBuilder("[");
        for (int record = 0; record < records; record++) {
            text.append("{\"id\":").append(record).append(",\"values\":[");
            for (int value = 0; value < 40; value++) {
                text.append(random.nextInt(1_000_000)).append(',');
            }
            text.append("0]},");
        }
        return text.append("{}]").toString().getBytes(StandardCharsets.UTF_8);
    }

    private static byte[] compressed(byte[] bytes) {
        try {
            var out = new ByteArrayOutputStream();
            try (var gzip = new GZIPOutputStream(out)) {
                gzip.write(bytes);
            }
            return out.toByteArray();
        } catch (java.io.IOException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    private static ThreadFactory named(String name) {
        var number = new AtomicInteger();
        return task -> new Thread(task, name + "-" + number.incrementAndGet());
    }
}
