// Each test has its cluster. KelsonCluster is one file, clients/junit/KelsonCluster.java, which this build takes as a test source.
package example;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.kelson.testing.KelsonCluster;
import io.fabric8.kubernetes.api.model.NamespaceBuilder;
import io.fabric8.kubernetes.client.Config;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

class NamespacesTest {
  @RegisterExtension KelsonCluster cluster = KelsonCluster.with("{\"controllers\":[\"namespace\"]}");

  private KubernetesClient client() {
    return new KubernetesClientBuilder().withConfig(Config.fromKubeconfig(cluster.kubeconfig())).build();
  }

  @Test
  void aDeletedNamespaceDisappears() {
    try (KubernetesClient client = client()) {
      var made = new NamespaceBuilder().withNewMetadata().withName("demo").endMetadata().build();
      client.resource(made).create();
      client.namespaces().withName("demo").delete();
      client.namespaces().withName("demo").waitUntilCondition(found -> found == null, 30, TimeUnit.SECONDS);
    }
  }

  @Test
  void aTestSeesNothingOfOthers() {
    try (KubernetesClient client = client()) {
      assertTrue(client.namespaces().withName("default").get() != null);
      assertEquals(0, client.configMaps().inNamespace("default").list().getItems().size());
    }
  }
}
