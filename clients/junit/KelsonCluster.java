// A JUnit 5 extension that gives each test a Kubernetes cluster of its own: `kelson test-server` is started once for the JVM, and
// every cluster is one call to it. Needs Java 17, JUnit 5, and nothing else.
//
//   @RegisterExtension
//   KelsonCluster cluster = KelsonCluster.with("{\"controllers\":[\"garbagecollector\"]}");
//
//   @Test
//   void reconciles() {
//     Config config = Config.fromKubeconfig(cluster.kubeconfig());
//     …
//   }
//
// The binary is named by the environment variable KELSON, else `kelson` in PATH. The server ends with the JVM, however that ends.
package dev.kelson.testing;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.Optional;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

public final class KelsonCluster implements BeforeEachCallback, AfterEachCallback {
  private final String request;
  private String answer;

  private KelsonCluster(String request) {
    this.request = request;
  }

  /** A new cluster for each test; {@code options} is JSON: controllers, scheduler, nodes. */
  public static KelsonCluster with(String options) {
    return new KelsonCluster("{\"options\":" + options + "}");
  }

  /** For each test a cluster that begins as the one of this name is at that moment. */
  public static KelsonCluster like(String name) {
    return new KelsonCluster("{\"from\":\"" + name + "\"}");
  }

  /** The administrator's kubeconfig, YAML. */
  public String kubeconfig() {
    return field("kubeconfig");
  }

  /** Where the API is served. */
  public String server() {
    return field("server");
  }

  /** The cluster's name, for {@link #like}. */
  public String name() {
    return field("name");
  }

  @Override
  public void beforeEach(ExtensionContext context) {
    answer = Server.INSTANCE.call("POST", "/clusters", request);
  }

  @Override
  public void afterEach(ExtensionContext context) {
    if (answer != null) {
      Server.INSTANCE.call("DELETE", "/clusters/" + name(), "");
      answer = null;
    }
  }

  /** A member of the answer. It is looked for by hand: a pattern would need a frame of the stack for each character of a kubeconfig. */
  private String field(String name) {
    int start = answer.indexOf("\"" + name + "\":\"");
    if (start < 0) {
      throw new IllegalStateException("no " + name + " in " + answer);
    }
    StringBuilder text = new StringBuilder();
    for (int i = start + name.length() + 4; answer.charAt(i) != '"'; i++) {
      char c = answer.charAt(i);
      if (c == '\\') {
        // The server's texts are YAML, PEM and URLs: of JSON's escapes a line's end is the only one that is not the character itself.
        c = answer.charAt(++i);
        c = c == 'n' ? '\n' : c;
      }
      text.append(c);
    }
    return text.toString();
  }

  /** The server, started by the first test that wants a cluster. Its standard input stays open as long as this JVM lives. */
  private enum Server {
    INSTANCE;

    private final HttpClient client = HttpClient.newHttpClient();
    private final String address;
    private final Process process;

    Server() {
      try {
        String binary = Optional.ofNullable(System.getenv("KELSON")).orElse("kelson");
        process =
            new ProcessBuilder(binary, "test-server", "--until-stdin-closes", "--log-level=warn")
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        address = new BufferedReader(new InputStreamReader(process.getInputStream())).readLine();
      } catch (IOException e) {
        throw new UncheckedIOException(e);
      }
      if (address == null) {
        throw new IllegalStateException("kelson test-server did not say where it listens");
      }
    }

    String call(String method, String path, String body) {
      HttpRequest request =
          HttpRequest.newBuilder(URI.create(address + path))
              .method(method, HttpRequest.BodyPublishers.ofString(body))
              .build();
      try {
        HttpResponse<String> response = client.send(request, HttpResponse.BodyHandlers.ofString());
        if (response.statusCode() >= 300) {
          throw new IllegalStateException(method + " " + path + ": " + response.statusCode() + " " + response.body());
        }
        return response.body();
      } catch (IOException e) {
        throw new UncheckedIOException(e);
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
        throw new IllegalStateException(e);
      }
    }
  }
}
