import { useStreamContext } from "@langchain/langgraph-sdk/react-ui";
import clsx from "clsx";
import { useState } from "react";
import "./cards.css";

function Weather({ city }: { city: string }) {
  const [likes, setLikes] = useState(0);
  const { messages } = useStreamContext();
  return (
    <p className={clsx("weather", "underline")} data-likes={likes}>
      {`Sunny in ${city}, ${messages.length} messages `}
      <button onClick={() => setLikes(likes + 1)}>Like</button>
    </p>
  );
}

export default { weather: Weather };
